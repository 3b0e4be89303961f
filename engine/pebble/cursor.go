package pebble

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A cursor moves over a range. It runs in its caller's goroutine, and so do the callbacks for each
// key: moving takes no lock that a failing Pebble could leave locked; closing does.
type cursor struct {
	it  *pebble.Iterator
	err error
}

// do makes one move, and turns a panic, which damaged bytes cause, into an error.
func (c *cursor) do(move func() bool) (ok bool) {
	if c.err != nil {
		return false
	}
	defer func() {
		if r := recover(); r != nil {
			c.err = fmt.Errorf("%w: pebble panicked: %v", storage.ErrDamaged, r)
			ok = false
		}
	}()
	if ok = move(); !ok {
		c.err = asRead(c.it.Error())
	}
	return ok
}
