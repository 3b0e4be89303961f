package engine_test

import (
	"context"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// withZero calls a function with the zero value of a type that the caller cannot name.
func withZero[A, R any](f func(A) R) R {
	var zero A
	return f(zero)
}

// What is behind Driver can write any key of the engine. An application cannot name the type of the
// argument, and its type arguments can be inferred.
func TestApplicationsDoNotGetWhatIsForDriver(t *testing.T) {
	e, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	refused := func(what string, fn func()) {
		t.Helper()
		defer func() {
			if text, _ := recover().(string); !strings.Contains(text, "engine/driver") {
				t.Errorf("%s: %q", what, text)
			}
		}()
		fn()
	}
	refused("Engine.Driver", func() { withZero(e.Driver) })
	if err := e.Update(context.Background(), func(tx *engine.Tx) error {
		refused("Tx.Driver", func() { withZero(tx.Driver) })
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
