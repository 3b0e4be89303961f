package engine_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hapax-dev/hapax/engine"
)

// longKey is a key of the greatest length.
func longKey(i int) []byte { return fmt.Appendf(nil, "%0*d", engine.MaxHostKeyBytes, i) }

func TestReadSetOfATransactionIsCappedInBytes(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	read := 0
	update(t, e, func(tx *engine.Tx) {
		for ; ; read++ {
			_, _, err := tx.Get(longKey(read))
			if errors.Is(err, engine.ErrLimit) {
				break
			}
			if err != nil || read > engine.MaxTxReadBytes/engine.MaxHostKeyBytes {
				t.Fatalf("read %d: %v", read, err)
			}
		}
		if _, _, err := tx.Get(longKey(0)); err != nil {
			t.Errorf("reading a key again: %v", err)
		}
		if err := tx.Put(longKey(0), []byte("x")); err != nil {
			t.Error(err)
		}
	})
	if least := engine.MaxTxReadBytes / (engine.MaxHostKeyBytes + 100); read < least {
		t.Errorf("%d keys were read, want at least %d", read, least)
	}
}

// The memory of what was written beside an open transaction is bounded: beyond it that transaction loses.
func TestMemoryOfRecentWritesIsCappedInBytes(t *testing.T) {
	for _, c := range []struct {
		bytes int
		want  error
	}{
		{engine.MaxRecentWriteBytes / 2, nil},
		{2 * engine.MaxRecentWriteBytes, engine.ErrConflict},
	} {
		e, _ := openMem(t, engine.Options{})
		most := 0
		err := e.Update(ctx, func(tx *engine.Tx) error {
			if _, _, err := tx.Get([]byte("read")); err != nil {
				return err
			}
			const each = 2000
			for from := 0; from*engine.MaxHostKeyBytes < c.bytes; from += each {
				update(t, e, func(other *engine.Tx) {
					for i := range each {
						if err := other.Put(longKey(from+i), nil); err != nil {
							t.Fatal(err)
						}
					}
				})
				most = max(most, e.RecentWriteBytes())
			}
			return tx.Put([]byte("written"), nil)
		})
		if !errors.Is(err, c.want) {
			t.Errorf("after %d bytes of keys were written beside it: %v, want %v", c.bytes, err, c.want)
		}
		if limit := engine.MaxRecentWriteBytes*5/4 + engine.MaxTxBytes; most > limit {
			t.Errorf("%d bytes are kept, want at most %d", most, limit)
		}
		update(t, e, func(tx *engine.Tx) { // one that begins later has lost nothing
			if _, _, err := tx.Get([]byte("read")); err != nil {
				t.Error(err)
			}
			_ = tx.Put([]byte("written"), nil)
		})
	}
}
