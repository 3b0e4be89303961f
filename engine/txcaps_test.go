package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
)

// longKey is a key of the greatest length.
func longKey(i int) []byte { return fmt.Appendf(nil, "%0*d", limits.KeyBytes, i) }

func TestReadSetOfATransactionIsCappedInBytes(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	read := 0
	update(t, e, func(tx *engine.Tx) {
		for ; ; read++ {
			_, _, err := tx.Get(longKey(read))
			if errors.Is(err, engine.ErrLimit) {
				break
			}
			if err != nil || read > limits.TxReadBytes/limits.KeyBytes {
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
	if least := limits.TxReadBytes / (limits.KeyBytes + 100); read < least {
		t.Errorf("%d keys were read, want at least %d", read, least)
	}
}

// A scan counts with the key at which it has ended, also if its prefix is short.
func TestScansOfATransactionAreCappedInBytes(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) {
		for i := range 2 {
			if err := tx.Put(longKey(i), nil); err != nil {
				t.Fatal(err)
			}
		}
	})
	scans := func(tx *engine.Tx) (n int) {
		for ; ; n++ {
			for _, err := range tx.Scan(engine.Range{Prefix: []byte("0"), Limit: 1}) {
				if errors.Is(err, engine.ErrLimit) {
					return n
				}
				if err != nil || n > limits.TxReadBytes/limits.KeyBytes {
					t.Fatalf("scan %d: %v", n, err)
				}
			}
		}
	}
	update(t, e, func(tx *engine.Tx) {
		if n, least := scans(tx), limits.TxReadBytes/(limits.KeyBytes+100); n < least {
			t.Errorf("%d scans were made, want at least %d", n, least)
		}
	})
	update(t, e, func(tx *engine.Tx) { // those of a part count in its transaction
		part, err := driver.BeginSubTx(tx)
		if err != nil {
			t.Fatal(err)
		}
		n := scans(part.Tx())
		if err := part.Join(); err != nil {
			t.Fatal(err)
		}
		if more := scans(tx); n == 0 || more > n/100 {
			t.Errorf("%d scans after the %d of a part", more, n)
		}
	})
	// A scan to the end of its prefix ends before a short key, and is counted as that.
	update(t, e, func(tx *engine.Tx) {
		for range 2 * limits.TxReadBytes / limits.KeyBytes {
			for _, err := range tx.Scan(engine.Range{Prefix: []byte("0")}) {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// The memory of writes concurrent with an open transaction is bounded: beyond the limit, that
// transaction conflicts.
func TestMemoryOfRecentWritesIsCappedInBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 2.5 times the limit, one transaction after the other")
	}
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
			for from := 0; from*limits.KeyBytes < c.bytes; from += each {
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
			t.Errorf("after %d bytes of keys were written concurrently: %v, want %v", c.bytes, err, c.want)
		}
		if limit := engine.MaxRecentWriteBytes*5/4 + limits.TxBytes; most > limit {
			t.Errorf("%d bytes are kept, want at most %d", most, limit)
		}
		update(t, e, func(tx *engine.Tx) { // one that begins later does not conflict
			if _, _, err := tx.Get([]byte("read")); err != nil {
				t.Error(err)
			}
			_ = tx.Put([]byte("written"), nil)
		})
	}
}

// A transaction that has only scanned conflicts with a write in the scanned range, even when recent
// writes are dropped because they take too much memory.
func TestAPhantomIsAConflictWhenRecentWritesAreDropped(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 393,216 offsets, one transaction after the other")
	}
	e, _ := openMem(t, engine.Options{})
	fill := func(group string) { // with keys that no scan reads
		for topic := range 6 {
			update(t, e, func(tx *engine.Tx) {
				for p := range int32(1 << 15) {
					at := engine.OffsetKey{Group: group, Topic: fmt.Sprintf("%0*d", limits.TopicBytes, topic), Partition: p}
					if err := tx.SetOffset(at, engine.Offset{Next: 1}); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
	scan := func(tx *engine.Tx) (n int, err error) {
		for _, err = range tx.Scan(prefix("k")) {
			if n++; err != nil {
				return n, err
			}
		}
		return n, nil
	}

	err := e.Update(ctx, func(outer *engine.Tx) error {
		if _, err := scan(outer); err != nil {
			return err
		}
		update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "k1", "phantom") })
		fill(strings.Repeat("g", 200))
		return outer.Put([]byte("sum"), []byte("0"))
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Errorf("a transaction that has not seen a key in its scanned range committed: %v", err)
	}

	err = e.Update(ctx, func(outer *engine.Tx) error {
		update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "k2", "phantom") })
		fill(strings.Repeat("h", 200))
		if n, err := scan(outer); !errors.Is(err, engine.ErrConflict) {
			t.Errorf("a scan has returned %d keys and %v, one of them written after the transaction began", n, err)
		}
		return nil
	})
	if err != nil && !errors.Is(err, engine.ErrConflict) {
		t.Error(err)
	}
}

// The scans of parts count towards the limit of the transaction into which they are joined.
func TestScansOfPartsAreCappedInBytes(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	const each, most = 100, limits.TxReadBytes / limits.KeyBytes
	scans := 0
	update(t, e, func(tx *engine.Tx) {
		for {
			p, err := driver.BeginSubTx(tx)
			if err != nil {
				t.Fatal(err)
			}
			for i := range each {
				for _, err := range p.Tx().Scan(engine.Range{Prefix: longKey(scans + i)}) {
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			err = p.Join()
			if errors.Is(err, engine.ErrLimit) {
				return
			}
			if scans += each; err != nil || scans > most {
				t.Fatalf("%d scans of %d bytes: %v", scans, limits.KeyBytes, err)
			}
		}
	})
	if scans < most/3 {
		t.Errorf("%d scans were joined", scans)
	}
}

// The keys of claims count, whether the transaction has made the claims or finishes them.
func TestKeysOfFinishedClaimsAreCappedInBytes(t *testing.T) {
	e, _ := openMem(t, engine.Options{MaxIDBytes: limits.IDBytes})
	events := make([]engine.Event, limits.TxBytes/limits.IDBytes+2)
	for i := range events {
		events[i] = leasedEvent("x" + fmt.Sprintf("%0*d", limits.IDBytes-1, i)) // not packed as digits are
	}
	results, err := e.TryClaimBatch(ctx, events)
	if err != nil {
		t.Fatal(err)
	}
	finished := 0
	update(t, e, func(tx *engine.Tx) {
		for ; err == nil && finished < len(results); finished++ {
			err = tx.Finish(results[finished].Lease, nil)
		}
		if !errors.Is(err, engine.ErrLimit) {
			t.Errorf("%d claims were finished: %v", finished, err)
		}
	})
	if least := limits.TxBytes / (limits.IDBytes + 100); finished < least {
		t.Errorf("%d claims were finished, want at least %d", finished, least)
	}
}
