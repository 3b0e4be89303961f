package versions_test

import (
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/versions"
)

func TestNewRefusesANilEngine(t *testing.T) {
	if _, err := versions.New(nil, "t", versions.Options{}); err == nil || !strings.Contains(err.Error(), "engine.Open") {
		t.Errorf("got %v", err)
	}
}
