package pebble

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A reader reads Pebble's keys.
type reader struct {
	core *core
}

func (r *reader) State(key []byte) ([]byte, bool, error) {
	return r.get(spaced(stateSpace, key))
}

// get reads a key of Pebble.
func (r *reader) get(key []byte) (value []byte, found bool, err error) {
	err = r.core.fault.lookUp(func() error {
		v, closer, err := r.core.db.Get(key)
		if errors.Is(err, pebble.ErrNotFound) {
			return nil
		}
		if err != nil {
			return asRead(err)
		}
		value, found = append(make([]byte, 0, len(v)), v...), true
		return closer.Close()
	})
	if err != nil {
		return nil, false, err
	}
	return value, found, nil
}

func (r *reader) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	return r.each(keyRange(stateSpace, span), func(it *pebble.Iterator) error { return fn(it.Key()[1:], it.Value()) })
}

func (r *reader) each(span pebble.KeyRange, fn func(*pebble.Iterator) error) error {
	return r.iterate(span, func(c *cursor) error {
		for ok := c.do(c.it.First); ok; ok = c.do(c.it.Next) {
			if err := fn(c.it); err != nil {
				return err
			}
		}
		return nil
	})
}

// iterate calls fn with a cursor on the current contents of span.
func (r *reader) iterate(span pebble.KeyRange, fn func(*cursor) error) error {
	c, err := r.newCursor(span)
	if err != nil {
		return err
	}
	return r.use(c, fn)
}

// newCursor returns a cursor on the current contents of span, to be passed to use.
func (r *reader) newCursor(span pebble.KeyRange) (*cursor, error) {
	if err := r.core.fault.get(); err != nil {
		return nil, err
	}
	it, err := r.core.db.NewIter(&pebble.IterOptions{LowerBound: span.Start, UpperBound: span.End})
	if err != nil {
		return nil, asRead(err)
	}
	return &cursor{it: it}, nil
}

// use calls fn with a cursor and closes it.
func (r *reader) use(c *cursor, fn func(*cursor) error) error {
	defer r.closeCursor(c)
	if err := fn(c); err != nil {
		return err
	}
	if failed := r.core.fault.get(); failed != nil {
		return failed
	}
	return c.err
}

// closeCursor closes the iterator, whose errors were returned before.
func (r *reader) closeCursor(c *cursor) {
	_ = r.core.fault.read(c.it.Close)
}
