package bench

import (
	"os"
	"testing"
)

// TestMain lets the test's binary be the child that runs start and kill.
func TestMain(m *testing.M) {
	if code, ran := ChildMain(os.Args[1:]); ran {
		os.Exit(code)
	}
	os.Exit(m.Run())
}
