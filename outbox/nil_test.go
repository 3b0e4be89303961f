package outbox_test

import (
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/outbox"
)

func TestNewRefusesANilEngine(t *testing.T) {
	if _, err := outbox.New(nil, outbox.Options{}); err == nil || !strings.Contains(err.Error(), "engine.Open") {
		t.Errorf("got %v", err)
	}
}
