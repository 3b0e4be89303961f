package idempotency_test

import (
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/idempotency"
)

func TestNewRefusesANilEngine(t *testing.T) {
	if _, err := idempotency.New(nil, idempotency.Options{}); err == nil || !strings.Contains(err.Error(), "engine.Open") {
		t.Errorf("got %v", err)
	}
}
