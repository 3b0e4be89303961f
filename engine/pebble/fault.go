package pebble

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A fault is the failure of a store. It is set once, by the first failed write, and never reset. It
// is also Pebble's logger, whose Fatalf would end the process.
//
// Closing failed has two effects at once: callers see the fault, and the failStopFS discards all changes.
// So a discarded write is never acknowledged.
type fault struct {
	failed  chan struct{} // closed when err is set
	running atomic.Int64  // number of goroutines of run inside Pebble

	mu         sync.Mutex // guards the fields below
	err        error
	damage     error  // the first damage that Pebble found in the background
	publishing func() // for tests: called before failed is closed, if it is not nil
}

func newFault() *fault { return &fault{failed: make(chan struct{})} }

// set makes the store fail. From then on it changes nothing.
func (f *fault) set(cause error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return
	}
	f.err = fmt.Errorf("hapax: the store has failed, nothing more is written: %w", cause)
	if f.publishing != nil {
		f.publishing()
	}
	close(f.failed)
}

// isSet reports whether the store has failed. It takes no lock.
func (f *fault) isSet() bool {
	select {
	case <-f.failed:
		return true
	default:
		return false
	}
}

// get returns why the store has failed, nil if it has not.
func (f *fault) get() error {
	if !f.isSet() {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *fault) noteDamage(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.damage == nil {
		f.damage = err
	}
}

// takeDamage returns the first damage that noteDamage recorded since the last call.
func (f *fault) takeDamage() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.damage
	f.damage = nil
	return err
}

// write runs fn, which calls Pebble to write, in a separate goroutine, so that the caller neither
// dies nor hangs with it. It returns an error after a panic, if Fatalf has ended the goroutine, or
// when the store fails. If fn still blocks then, its goroutine leaks.
func (f *fault) write(fn func() error) error {
	return f.run(fn, func(cause error) error {
		f.set(cause)
		return f.get()
	})
}

// read is write for functions that only read. Damaged bytes may cause a panic, after which the
// store continues.
func (f *fault) read(fn func() error) error {
	return f.run(fn, func(cause error) error {
		return fmt.Errorf("%w: %w", storage.ErrDamaged, cause)
	})
}

// readValue is read for a function with a result. A variable that fn sets must not be used after an
// error: fn may still be running then.
func readValue[T any](f *fault, fn func() (T, error)) (T, error) {
	var value, none T
	err := f.read(func() (err error) {
		value, err = fn()
		return err
	})
	if err != nil {
		return none, err
	}
	return value, nil
}

// lookUp is read in the caller's goroutine, because a second goroutine and two switches cost as
// much as a read of a table. fn must not take locks of Pebble that a failure could leave held.
func (f *fault) lookUp(fn func() error) (err error) {
	if err := f.get(); err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: pebble panicked: %v", storage.ErrDamaged, r)
		}
		if failed := f.get(); failed != nil {
			err = failed
		}
	}()
	return fn()
}

// inLookUp reports whether the calling goroutine is inside lookUp. Such a goroutine belongs to the
// application and must not be ended.
func inLookUp() bool { return isCalledBy("(*fault).lookUp") }

// isCalledBy reports whether a function whose name has this suffix is on the stack of the calling
// goroutine.
func isCalledBy(name string) bool {
	pcs := make([]uintptr, 128)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, name) {
			return true
		}
		if !more {
			return false
		}
	}
}

func (f *fault) run(fn func() error, ended func(cause error) error) error {
	if err := f.get(); err != nil {
		return err
	}
	done := make(chan error, 1)
	f.running.Add(1)
	go func() {
		defer f.running.Add(-1)
		err := errors.New("pebble gave up")
		returned := false
		defer func() {
			if !returned {
				if r := recover(); r != nil {
					err = fmt.Errorf("pebble panicked: %v", r)
					if cause, ok := r.(error); ok {
						err = fmt.Errorf("pebble panicked: %w", cause)
					}
				}
				err = ended(err)
			}
			done <- err
		}()
		err = fn()
		returned = true
	}()
	select {
	case err := <-done:
		if failed := f.get(); failed != nil {
			return failed
		}
		return err
	case <-f.failed:
		return f.get()
	}
}

// Infof and Errorf discard Pebble's log lines; its calls and events return the errors.
func (*fault) Infof(string, ...any)  {}
func (*fault) Errorf(string, ...any) {}

// Fatalf is called when Pebble cannot continue. If it returned, Pebble would continue and report
// success.
func (f *fault) Fatalf(format string, args ...any) {
	err := fmt.Errorf("pebble: "+format, args...)
	f.set(err)
	if inLookUp() {
		panic(err) // lookUp recovers it
	}
	runtime.Goexit()
}
