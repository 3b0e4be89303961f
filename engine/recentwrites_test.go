package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// readCounter counts the reads of application keys.
type readCounter struct {
	*storetest.Mem
	reads atomic.Int64
}

func (s *readCounter) State(key []byte) ([]byte, bool, error) {
	if key[0] == 'h' {
		s.reads.Add(1)
	}
	return s.Mem.State(key)
}

func TestAKeyThatWasWrittenRecentlyIsNotReadFromTheStore(t *testing.T) {
	s := &readCounter{Mem: storetest.NewMem(storage.Identity{})}
	e := open(t, s, engine.Options{})
	large := strings.Repeat("x", 1000)
	update(t, e, func(tx *engine.Tx) {
		for key, value := range map[string]string{"small": "1", "empty": "", "large": large} {
			if err := tx.Put([]byte(key), []byte(value)); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Delete([]byte("deleted")); err != nil {
			t.Fatal(err)
		}
	})
	wantKept(t, e, map[string]string{"small": "1", "empty": "", "deleted": "absent"})
	if n := s.reads.Load(); n != 0 {
		t.Errorf("%d reads of the store, want none", n)
	}
	wantKept(t, e, map[string]string{"large": large})
	if n := s.reads.Load(); n != 1 {
		t.Errorf("%d reads of the store for a large value, want 1", n)
	}
}

// A transaction gets a copy of a value, even if the store was not read for it.
func TestAValueThatATransactionGetsIsItsOwn(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	key := []byte("k")
	update(t, e, func(tx *engine.Tx) {
		if err := tx.Put(key, []byte("value")); err != nil {
			t.Fatal(err)
		}
	})
	update(t, e, func(tx *engine.Tx) {
		value, _, err := tx.Get(key)
		if err != nil {
			t.Fatal(err)
		}
		copy(value, "XXXXX")
	})
	wantKept(t, e, map[string]string{"k": "value"})
}

// Transactions with writes of all kinds, some rolled back, compared with a map and with the store.
func TestReadsOfRecentWritesAgreeWithTheStore(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		e, _ := openMem(t, engine.Options{})
		now := make(map[string][]byte)
		for range 200 {
			next := make(map[string][]byte)
			err := e.Update(ctx, func(tx *engine.Tx) error {
				for range 1 + rnd.IntN(3) {
					key := fmt.Sprint("k", rnd.IntN(6))
					before, changed := next[key]
					if !changed {
						before = now[key]
					}
					value, found, err := tx.Get([]byte(key))
					if err != nil || found != (before != nil) || !bytes.Equal(value, before) {
						t.Fatalf("seed %d: %s is %q, %v, %v; want %q", seed, key, value, found, err, before)
					}
					switch op := rnd.IntN(10); {
					case op < 2:
						next[key], err = nil, tx.Delete([]byte(key))
					case op < 5 && len(before) == 8:
						n, _ := engine.DecodeInt64(before)
						next[key], err = engine.EncodeInt64(n+1), tx.Add([]byte(key), 1)
					case op < 7:
						next[key] = engine.EncodeInt64(int64(rnd.IntN(100)))
						err = tx.Put([]byte(key), next[key])
					default:
						next[key] = bytes.Repeat([]byte{'x'}, rnd.IntN(130))
						err = tx.Put([]byte(key), next[key])
					}
					if err != nil {
						return err
					}
				}
				if rnd.IntN(4) == 0 {
					return errUndone
				}
				return nil
			})
			switch {
			case err == nil:
				for key, value := range next {
					now[key] = value
				}
			case !errors.Is(err, errUndone):
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		for key, want := range now { // without a transaction
			value, found, err := e.Get(ctx, []byte(key))
			if err != nil || found != (want != nil) || !bytes.Equal(value, want) {
				t.Errorf("seed %d: the store has %q for %s, %v, %v; want %q", seed, value, key, found, err, want)
			}
		}
	}
}

var errUndone = errors.New("undone")
