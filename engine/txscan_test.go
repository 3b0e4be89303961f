package engine_test

import (
	"cmp"
	"errors"
	"fmt"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
)

func TestScanInATransactionSeesItsOwnWrites(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) {
		for _, k := range []string{"a1", "a3", "a5", "b1"} {
			mustPut(t, tx, k, "old")
		}
	})
	update(t, e, func(tx *engine.Tx) {
		mustPut(t, tx, "a0", "new")
		point, err := tx.Savepoint()
		if err != nil {
			t.Fatal(err)
		}
		mustPut(t, tx, "a2", "new")
		mustPut(t, tx, "a3", "new")
		mustPut(t, tx, "b0", "new")
		if err := tx.Delete([]byte("a5")); err != nil {
			t.Fatal(err)
		}
		mustPut(t, tx, "a9", "")
		wantKeys(t, collect(t, tx.Scan(prefix("a"))), "a0=new", "a1=old", "a2=new", "a3=new", "a9=")
		wantKeys(t, collect(t, tx.Scan(engine.Range{Prefix: []byte("a"), After: []byte("a2")})), "a3=new", "a9=")
		if err := tx.RollbackTo(point); err != nil {
			t.Fatal(err)
		}
		wantKeys(t, collect(t, tx.Scan(prefix("a"))), "a0=new", "a1=old", "a3=old", "a5=old")
	})
}

func TestScanInATransactionReturnsManyPages(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	var want []string
	putMany(t, e, "a", 0, 10)
	want = append(want, putMany(t, e, "k", 0, 3000)...)
	putMany(t, e, "z", 0, 10)
	update(t, e, func(tx *engine.Tx) {
		for i := range 3000 {
			if i%3 == 0 {
				want[i] = fmt.Sprintf("k%05d=own", i)
				mustPut(t, tx, fmt.Sprintf("k%05d", i), "own")
			}
		}
		mustPut(t, tx, "k99999", "own")
		wantKeys(t, collect(t, tx.Scan(prefix("k"))), append(want, "k99999=own")...)
	})
}

// The range of a scan, and concurrent writes of others.
func TestPhantomsAreConflicts(t *testing.T) {
	for _, c := range []struct {
		name     string
		read     int // keys of k00, k02, ... k18 to read; 0 for all
		write    func(tx *engine.Tx) error
		conflict bool
	}{
		{"a key added between those read", 5, put("k03"), true},
		{"a key added before the first", 5, put("k"), true},
		{"a key read was changed", 5, put("k08"), true},
		{"a key read was deleted", 5, func(tx *engine.Tx) error { return tx.Delete([]byte("k04")) }, true},
		{"an absent key was deleted", 5, func(tx *engine.Tx) error { return tx.Delete([]byte("k03")) }, true},
		{"a key added right after the last read one", 5, put("k08\x00"), false},
		{"a key changed after the last one read", 5, put("k10"), false},
		{"a key added at the end of all keys", 0, put("k99"), true},
		{"a key added after the prefix", 0, put("l"), false},
		{"a key added before the prefix", 0, put("j\xff"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, _ := openMem(t, engine.Options{})
			update(t, e, func(tx *engine.Tx) {
				for i := 0; i < 20; i += 2 {
					mustPut(t, tx, fmt.Sprintf("k%02d", i), "1")
				}
			})
			err := e.Update(ctx, func(outer *engine.Tx) error {
				n := 0
				for _, err := range outer.Scan(prefix("k")) {
					if err != nil {
						return err
					}
					if n++; n == c.read {
						break
					}
				}
				if err := e.Update(ctx, c.write); err != nil {
					t.Fatal(err)
				}
				return outer.Put([]byte("sum"), fmt.Append(nil, n))
			})
			if errors.Is(err, engine.ErrConflict) != c.conflict || !c.conflict && err != nil {
				t.Errorf("the transaction that has scanned ended with %v", err)
			}
		})
	}
}

func put(key string) func(tx *engine.Tx) error {
	return func(tx *engine.Tx) error { return tx.Put([]byte(key), []byte("2")) }
}

func TestScanEndsAtAKeyThatWasWrittenSinceTheBegin(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	putMany(t, e, "k", 0, 10)
	for _, stop := range []int{3, 100} {
		n := 0
		err := e.Update(ctx, func(outer *engine.Tx) error {
			update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "k00005", fmt.Sprint("after ", stop)) })
			for kv, err := range outer.Scan(prefix("k")) {
				if err != nil {
					if !errors.Is(err, engine.ErrConflict) {
						t.Error(err)
					}
					break
				}
				if n++; n == stop {
					break
				}
				if string(kv.Value) != fmt.Sprint(n-1) {
					t.Errorf("read %q under %q", kv.Value, kv.Key)
				}
			}
			return outer.Put([]byte("other"), nil)
		})
		if stop == 3 && (n != 3 || err != nil) || stop == 100 && (n != 5 || !errors.Is(err, engine.ErrConflict)) {
			t.Errorf("stopping after %d keys: %d were read, %v", stop, n, err)
		}
	}
}

func TestTwoTransactionsThatCountAndAddDoNotBothCommit(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	count := func(tx *engine.Tx) int { return len(collect(t, tx.Scan(prefix("seat/")))) }
	err := e.Update(ctx, func(outer *engine.Tx) error {
		n := count(outer)
		update(t, e, func(inner *engine.Tx) { mustPut(t, inner, fmt.Sprint("seat/a", count(inner)), "") })
		return outer.Put(fmt.Append(nil, "seat/b", n), nil)
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Fatal(err)
	}
	wantKeys(t, collect(t, e.Scan(ctx, prefix("seat/"))), "seat/a0=")
}

func TestScansOfATransactionAreCapped(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	err := e.Update(ctx, func(tx *engine.Tx) error {
		for range limits.TxScans {
			for _, err := range tx.Scan(prefix("k")) {
				return err
			}
		}
		for _, err := range tx.Scan(prefix("k")) {
			return err
		}
		return nil
	})
	if !errors.Is(err, engine.ErrLimit) {
		t.Error(err)
	}
}

func TestScanOutsideItsTransaction(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	var kept *engine.Tx
	update(t, e, func(tx *engine.Tx) { kept = tx })
	for _, tx := range []*engine.Tx{kept, nil} {
		n := 0
		for _, err := range tx.Scan(engine.Range{}) {
			if n++; !errors.Is(err, engine.ErrNoTransaction) {
				t.Error(err)
			}
		}
		if n != 1 {
			t.Errorf("%d pairs", n)
		}
	}
}

// A scan shows the transaction's own writes, in pages, however many there are.
func TestScanOfManyOwnWrites(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	const n = 3 * 1024
	key := func(i int) []byte { return fmt.Appendf(nil, "k%06d", i) }
	err := e.Update(t.Context(), func(tx *engine.Tx) error { // every third is in the store
		for i := 0; i < n; i += 3 {
			if err := tx.Put(key(i), []byte("stored")); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = e.Update(t.Context(), func(tx *engine.Tx) error {
		for i := n - 1; i >= 0; i-- {
			var err error
			switch i % 3 {
			case 1:
				err = tx.Put(key(i), []byte("own"))
			case 2:
				err = tx.Add(key(i), int64(i))
			}
			if i%15 == 0 { // in the store
				err = tx.Delete(key(i))
			}
			if err != nil {
				return err
			}
		}
		part, err := driver.BeginSubTx(tx)
		if err != nil {
			return err
		}
		if err := part.Tx().Add(key(2), 1); err != nil {
			return err
		}
		for name, scanned := range map[string]*engine.Tx{"transaction": tx, "part": part.Tx()} {
			at := 0
			for kv, err := range scanned.Scan(engine.Range{Prefix: []byte("k")}) {
				if err != nil {
					return err
				}
				if at%15 == 0 {
					at++
				}
				want := []string{"stored", "own", string(engine.EncodeInt64(int64(at)))}[at%3]
				if at == 2 && name == "part" {
					want = string(engine.EncodeInt64(3))
				}
				if string(kv.Key) != string(key(at)) || string(kv.Value) != want {
					t.Fatalf("%s: at %d there is %q = %q, want %q", name, at, kv.Key, kv.Value, want)
				}
				at++
			}
			if at != n {
				t.Errorf("%s: the scan ended at %d of %d", name, at, n)
			}
		}
		return part.Join()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A conflict ends a scan at the written key, not at its page.
func TestScanOfManyOwnWritesUpToAConflict(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	err := e.Update(t.Context(), func(tx *engine.Tx) error {
		for i := range 100 {
			mustPut(t, tx, fmt.Sprintf("k%03d", i), "own")
		}
		update(t, e, func(other *engine.Tx) { mustPut(t, other, "k200", "other") })
		for _, limit := range []int{80, 0} {
			n, last := 0, error(nil)
			for _, last = range tx.Scan(engine.Range{Prefix: []byte("k"), Limit: limit}) {
				if last == nil {
					n++
				}
			}
			if want := cmp.Or(limit, 100); n != want || (limit == 0) != errors.Is(last, engine.ErrConflict) {
				t.Errorf("limit %d: %d keys, then %v, want %d", limit, n, last, want)
			}
		}
		return nil
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Errorf("the transaction has met another one: %v", err)
	}
}
