package engine_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

func mustAdd(t testing.TB, tx *engine.Tx, key string, delta int64) {
	t.Helper()
	if err := tx.Add([]byte(key), delta); err != nil {
		t.Fatalf("adding %d to %q: %v", delta, key, err)
	}
}

func wantSum(t testing.TB, e *engine.Engine, key string, want int64) {
	t.Helper()
	v, _, err := e.Get(ctx, []byte(key))
	if n, notInteger := engine.DecodeInt64(v); n != want || err != nil || notInteger != nil {
		t.Fatalf("%q holds %x, %v; want %d", key, v, err, want)
	}
}

func TestAddsToOneKeyDoNotConflict(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	update(t, e, func(outer *engine.Tx) {
		mustAdd(t, outer, "k", 1)
		update(t, e, func(inner *engine.Tx) { mustAdd(t, inner, "k", 10) })
		mustAdd(t, outer, "k", 100)
		update(t, e, func(inner *engine.Tx) { mustAdd(t, inner, "k", -1000) })
	})
	wantSum(t, e, "k", -889)
	again := open(t, m.CrashClone(0), engine.Options{})
	wantSum(t, again, "k", -889)
	update(t, again, func(tx *engine.Tx) { mustAdd(t, tx, "k", 889) })
	wantSum(t, again, "k", 0)
}

func TestReadOfAKeyConflictsWithAnAddToIt(t *testing.T) {
	for name, read := range map[string]func(tx *engine.Tx) error{
		"Get":  func(tx *engine.Tx) error { _, _, err := tx.Get([]byte("k")); return err },
		"Scan": func(tx *engine.Tx) error { collect(t, tx.Scan(prefix("k"))); return nil },
		"Get of an added key": func(tx *engine.Tx) error {
			mustAdd(t, tx, "k", 1)
			_, _, err := tx.Get([]byte("k"))
			return err
		},
		"Scan of an added key": func(tx *engine.Tx) error {
			mustAdd(t, tx, "k", 1)
			collect(t, tx.Scan(prefix("k")))
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := openMem(t, engine.Options{})
			err := e.Update(ctx, func(outer *engine.Tx) error {
				err := read(outer)
				update(t, e, func(inner *engine.Tx) { mustAdd(t, inner, "k", 5) })
				return errors.Join(err, outer.Put([]byte("other"), nil))
			})
			if !errors.Is(err, engine.ErrConflict) {
				t.Error(err)
			}
			wantSum(t, e, "k", 5)
		})
	}
}

func TestATransactionSeesItsAdds(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	sum := func(n int64) string { return string(engine.EncodeInt64(n)) }
	update(t, e, func(tx *engine.Tx) {
		mustPut(t, tx, "old", sum(100))
		mustPut(t, tx, "put", "x")
		mustPut(t, tx, "gone", "x")
	})
	update(t, e, func(tx *engine.Tx) {
		mustAdd(t, tx, "old", 5)
		mustAdd(t, tx, "new", 7)
		mustAdd(t, tx, "zero", 0)
		mustPut(t, tx, "put", sum(1000))
		mustAdd(t, tx, "put", -1)
		if err := tx.Delete([]byte("gone")); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, tx, "gone", 3)
		mustAdd(t, tx, "replaced", 3)
		mustPut(t, tx, "replaced", "text")
		mustAdd(t, tx, "removed", 3)
		if err := tx.Delete([]byte("removed")); err != nil {
			t.Fatal(err)
		}
		point, err := tx.Savepoint()
		if err != nil {
			t.Fatal(err)
		}
		mustAdd(t, tx, "old", 50)
		mustAdd(t, tx, "put", 50)
		mustAdd(t, tx, "undone", 1)
		wantGet(t, tx, "old", sum(155))
		wantGet(t, tx, "put", sum(1049))
		if err := tx.RollbackTo(point); err != nil {
			t.Fatal(err)
		}
		wantGet(t, tx, "old", sum(105))
		wantGet(t, tx, "new", sum(7))
		wantKeys(t, collect(t, tx.Scan(engine.Range{})),
			"gone="+sum(3), "new="+sum(7), "old="+sum(105), "put="+sum(999), "replaced=text", "zero="+sum(0))
	})
	wantKept(t, e, map[string]string{
		"gone": sum(3), "new": sum(7), "old": sum(105), "put": sum(999), "replaced": "text", "zero": sum(0), "undone": "absent", "removed": "absent",
	})
}

func TestAnAddThatOverflowsFailsItsTransactionWhole(t *testing.T) {
	overflow, notInteger := &engine.AddError{Key: []byte("k"), Overflow: true}, &engine.AddError{Key: []byte("k")}
	for name, c := range map[string]struct {
		stored string
		delta  int64
		want   *engine.AddError
	}{
		"overflow":            {string(engine.EncodeInt64(math.MaxInt64 - 1)), 2, overflow},
		"negative overflow":   {string(engine.EncodeInt64(math.MinInt64)), -1, overflow},
		"a text":              {"12345678901", 1, notInteger},
		"a value of no bytes": {"", 1, notInteger},
		"up to the maximum":   {string(engine.EncodeInt64(math.MaxInt64 - 1)), 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := openMem(t, engine.Options{})
			update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "k", c.stored) })
			run := func() error {
				return e.Update(ctx, func(tx *engine.Tx) error {
					wantTx(t, tx, event("a"), engine.Claimed)
					mustPut(t, tx, "other", "x")
					mustAdd(t, tx, "sum", 5)
					mustAdd(t, tx, "k", c.delta)
					return nil
				})
			}
			err := run()
			var blamed *engine.AddError
			if errors.As(err, &blamed); (c.want == nil) != (err == nil) || !reflect.DeepEqual(blamed, c.want) {
				t.Fatalf("the transaction ended with %v", err)
			}
			if c.want == nil {
				return
			}
			wantKept(t, e, map[string]string{"k": c.stored, "other": "absent", "sum": "absent"})
			wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
		})
	}
}

func TestAnAddThatOwnWritesForbidIsRejectedAtOnce(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) {
		mustAdd(t, tx, "k", math.MaxInt64)
		mustPut(t, tx, "text", "x")
		var blamed *engine.AddError
		if err := tx.Add([]byte("k"), 1); !errors.As(err, &blamed) || !blamed.Overflow {
			t.Error(err)
		}
		if err := tx.Add([]byte("text"), 1); !errors.As(err, &blamed) || blamed.Overflow || string(blamed.Key) != "text" {
			t.Error(err)
		}
		if err := tx.Add(nil, 1); !errors.As(err, new(*engine.ArgumentError)) {
			t.Error(err)
		}
		mustAdd(t, tx, "k", -1)
	})
	wantSum(t, e, "k", math.MaxInt64-1)
}

// held begins transactions whose batches are not applied before release is called.
type held struct {
	testing.TB
	e       *engine.Engine
	m       *storetest.Mem
	applies chan struct{}
	done    []chan error
}

func hold(t testing.TB) *held {
	e, m := openMem(t, engine.Options{})
	h := &held{TB: t, e: e, m: m, applies: make(chan struct{})}
	m.Before(storetest.OpApply, func(int) error { <-h.applies; return nil })
	return h
}

// begin returns when the committer has decided the transaction, or waits for an earlier batch.
func (h *held) begin(fn func(tx *engine.Tx) error) {
	if h.Failed() { // none of the earlier ones was taken
		return
	}
	ended := make(chan error, 1)
	h.done = append(h.done, ended)
	go func() { ended <- h.e.Update(ctx, fn) }()
	h.e.AwaitTaken(h, len(h.done))
}

func (h *held) add(key string, delta int64) {
	h.begin(func(tx *engine.Tx) error { return tx.Add([]byte(key), delta) })
}

func (h *held) put(key string, n int64) {
	h.begin(func(tx *engine.Tx) error { return tx.Put([]byte(key), engine.EncodeInt64(n)) })
}

func (h *held) release() {
	h.Helper()
	close(h.applies)
	for i, d := range h.done {
		if err := receive(h, d); err != nil {
			h.Errorf("transaction %d: %v", i, err)
		}
	}
}

func TestAddsBuildOnBatchesInProgress(t *testing.T) {
	h := hold(t)
	h.add("a", 1) // the first batch, which is being applied
	h.add("a", 2) // the second one
	h.put("b", 10)
	h.add("b", 1)
	h.add("a", 4)
	h.put("a", 100)
	h.add("a", 8)
	h.begin(func(tx *engine.Tx) error { return tx.Delete([]byte("b")) })
	h.add("b", 5)
	h.add("a", 16)
	h.release()
	wantSum(t, h.e, "a", 124)
	wantSum(t, h.e, "b", 5)
}

// A key that the cache has dropped is looked up in the batch being decided, or in the store once
// the previous batch is applied.
func TestAddsToKeysOutsideTheCacheBuildOnBatchesInProgress(t *testing.T) {
	h := hold(t)
	h.add("a", 1) // is being applied
	h.add("b", 2)
	h.add("b", 3)
	h.e.ForgetSums()
	h.add("b", 4)
	h.put("c", 10)
	h.add("c", 1)
	h.put("c", 20)
	h.e.ForgetSums()
	h.add("c", 2)
	h.begin(func(tx *engine.Tx) error { return tx.Delete([]byte("b")) })
	h.e.ForgetSums()
	h.add("b", 5)
	h.e.ForgetSums()
	h.begin(func(tx *engine.Tx) error { return tx.Add([]byte("a"), 6) })
	h.release()
	wantSum(t, h.e, "a", 7)
	wantSum(t, h.e, "b", 5)
	wantSum(t, h.e, "c", 22)
}

func TestAddsOfOneBatchAreOneWrite(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	writes := map[uint64]int{}
	store := &tampered{Mem: m}
	release := make(chan struct{})
	store.apply = func(b *storage.Batch) (func() error, error) {
		<-release
		for _, w := range b.State {
			if string(w.Key) == "hk" {
				writes[b.Seq]++
			}
		}
		return m.Apply(b)
	}
	go func() { release <- struct{}{} }() // the first batch of a new store
	e := open(t, store, engine.Options{})
	e.AwaitBehind(t)
	var done []chan error
	for range 20 {
		ended := make(chan error, 1)
		done = append(done, ended)
		go func() { ended <- e.Update(ctx, func(tx *engine.Tx) error { return tx.Add([]byte("k"), 1) }) }()
		e.AwaitTaken(t, len(done))
	}
	close(release)
	for _, d := range done {
		if err := receive(t, d); err != nil {
			t.Error(err)
		}
	}
	wantSum(t, e, "k", 20)
	for seq, n := range writes {
		if n != 1 {
			t.Errorf("batch %d writes the key %d times", seq, n)
		}
	}
	if len(writes) > 3 {
		t.Errorf("20 transactions took %d batches", len(writes))
	}
}

func TestSumsOfManyKeysDoNotGrowWithoutBound(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	long := string(make([]byte, 4000))
	for round := range 2 {
		update(t, e, func(tx *engine.Tx) {
			for i := range 4000 {
				mustAdd(t, tx, fmt.Sprint(i, long), int64(i))
			}
		})
		if n := e.SumBytes(); n > 8<<20 || n == 0 {
			t.Errorf("round %d: the cache of sums has %d bytes", round, n)
		}
	}
	for i := range 4000 {
		wantSum(t, e, fmt.Sprint(i, long), int64(2*i))
	}
}
