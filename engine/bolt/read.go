package bolt

import (
	"bytes"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A reader reads state.
type reader struct{ core *core }

func (r *reader) State(key []byte) (value []byte, found bool, err error) {
	err = r.core.view(func(tx *readTx) error {
		t, err := tx.dir(stateDir)
		if err != nil {
			return err
		}
		value, found, err = t.Get(stateKey(key))
		return err
	})
	return value, found, err
}

func (r *reader) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	prefix := stateKey(span.Prefix)
	return r.core.view(func(tx *readTx) error {
		t, err := tx.dir(stateDir)
		if err != nil {
			return err
		}
		return t.Each(stateKey(span.Start()), func(c *pages.Cursor) error {
			if !bytes.HasPrefix(c.Key(), prefix) {
				return pages.ErrStop
			}
			return fn(c.Key()[1:], c.Record())
		})
	})
}
