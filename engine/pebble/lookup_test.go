package pebble

import (
	"errors"
	"testing"
)

// Pebble ends the goroutine by Fatalf when a table that it reads does not exist. In a look-up that
// goroutine is the application's: it gets an error and continues.
func TestFatalfInALookUpIsAnErrorAndTheCallerLives(t *testing.T) {
	f := newFault()
	ended := errors.New("the caller's goroutine was ended")
	returned := make(chan error, 1)
	go func() {
		err := ended
		defer func() { returned <- err }()
		err = f.lookUp(func() error {
			f.Fatalf("no table %d", 7)
			return nil
		})
	}()
	if err := <-returned; err == nil || errors.Is(err, ended) || !errors.Is(err, f.get()) {
		t.Fatalf("Fatalf in a lookup: %v", err)
	}
}

func TestPanicInALookUpIsDamage(t *testing.T) {
	if err := newFault().lookUp(func() error { panic("a block that is none") }); err == nil {
		t.Fatal("a panic in a lookup is no error")
	}
}
