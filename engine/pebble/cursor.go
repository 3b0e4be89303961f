package pebble

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A cursor moves over a range. It runs in the goroutine of its caller, so that what is called for
// each key does too: moving takes no lock that a failing Pebble could leave locked; closing does.
type cursor struct {
	it  *pebble.Iterator
	err error
}

// iterate calls fn with a cursor on what span holds at this moment.
func (s *Store) iterate(span pebble.KeyRange, fn func(*cursor) error) error {
	c, err := s.newCursor(span)
	if err != nil {
		return err
	}
	return s.use(c, fn)
}

// newCursor returns a cursor on what span holds at this moment, for use.
func (s *Store) newCursor(span pebble.KeyRange) (*cursor, error) {
	if err := s.fault.get(); err != nil {
		return nil, err
	}
	if s.opening != nil {
		s.opening()
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: span.Start, UpperBound: span.End})
	if err != nil {
		return nil, asRead(err)
	}
	return &cursor{it: it}, nil
}

// use calls fn with a cursor and closes it.
func (s *Store) use(c *cursor, fn func(*cursor) error) error {
	defer s.closeCursor(c)
	if err := fn(c); err != nil {
		return err
	}
	if failed := s.fault.get(); failed != nil {
		return failed
	}
	return c.err
}

// do makes one move, and a panic, which is the work of damaged bytes, an error.
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

// closeCursor closes the iterator, whose errors were returned before.
func (s *Store) closeCursor(c *cursor) {
	_ = s.fault.read(c.it.Close)
}
