package pebble

import (
	"bytes"
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

// pass makes the cursor usable again after it has met damage that is confined, which it adds to damage,
// and returns the key after the damaged table, nil if it has not. at is where it was to move.
func (c *cursor) pass(at []byte, damage *storage.DamageError) (next []byte) {
	if c.err == nil {
		return nil
	}
	d, span, ok := confined(c.err)
	if !ok || bytes.Compare(span.End, at) <= 0 {
		return nil
	}
	it, err := c.it.Clone(pebble.CloneOptions{})
	if err != nil {
		return nil
	}
	_ = c.it.Close() // it returns the damage again
	damage.Parts, damage.Err = append(damage.Parts, d), c.err
	c.it, c.err = it, nil
	return span.End
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
