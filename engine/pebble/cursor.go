package pebble

import (
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A cursor moves over a range. It runs in its caller's goroutine, as do the callbacks for each key,
// because moving takes no lock that a failing Pebble could leave locked; closing does.
type cursor struct {
	it  *pebble.Iterator
	err error
}

// limit makes the cursor read only claims before end, and no tables that begin at end or later. The
// cursor must then be moved to a key.
func (c *cursor) limit(end []byte) { c.it.SetBounds([]byte{claimSpace}, end) }

// repair makes the cursor usable again after it has met confined damage. It adds the damage to
// damage, and returns the range of the damaged table, or the zero range if there was no damage.
// Other errors remain.
func (c *cursor) repair(damage *storage.DamageError) (damaged pebble.KeyRange, ok bool) {
	if c.err == nil {
		return damaged, true
	}
	d, damaged, ok := confined(c.err)
	if !ok {
		return damaged, false
	}
	it, err := c.it.Clone(pebble.CloneOptions{})
	if err != nil {
		return damaged, false
	}
	_ = c.it.Close() // returns the same damage
	if !slices.Contains(damage.Parts, d) {
		damage.Parts = append(damage.Parts, d)
	}
	damage.Err = c.err
	c.it, c.err = it, nil
	return damaged, true
}

// do makes one move. It converts a panic, which damaged bytes cause, into an error.
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
