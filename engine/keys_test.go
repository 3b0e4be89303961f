package engine_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// collect returns the keys and values of an iteration as "key=value".
func collect(t testing.TB, seq iter.Seq2[engine.KeyValue, error]) (got []string) {
	t.Helper()
	for kv, err := range seq {
		if err != nil {
			t.Fatalf("after %d keys: %v", len(got), err)
		}
		got = append(got, string(kv.Key)+"="+string(kv.Value))
	}
	return got
}

func wantKeys(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("iterated over %q, want %q", got, want)
	}
}

func prefix(p string) engine.Range { return engine.Range{Prefix: []byte(p)} }

// putMany puts keys from-to with a prefix, in their order.
func putMany(t testing.TB, e *engine.Engine, prefix string, from, to int) (want []string) {
	t.Helper()
	update(t, e, func(tx *engine.Tx) {
		for i := from; i < to; i++ {
			key := fmt.Sprintf("%s%05d", prefix, i)
			mustPut(t, tx, key, fmt.Sprint(i))
			want = append(want, key+"="+fmt.Sprint(i))
		}
	})
	return want
}

// heldUpdate puts a key in a transaction that is applied and not durable; the returned func makes
// it durable.
func heldUpdate(t testing.TB, e *engine.Engine, m *storetest.Mem, key, value string) (release func()) {
	t.Helper()
	m.HoldSyncs()
	done := make(chan error, 1)
	go func() {
		done <- e.Update(ctx, func(tx *engine.Tx) error { return tx.Put([]byte(key), []byte(value)) })
	}()
	awaitHeld(t, m)
	return func() {
		t.Helper()
		m.ReleaseSyncs()
		if err := receive(t, done); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadsOutsideATransactionReturnOnlyDurableValues(t *testing.T) {
	for name, read := range map[string]func(ctx context.Context, e *engine.Engine) (string, error){
		"Get": func(ctx context.Context, e *engine.Engine) (string, error) {
			v, _, err := e.Get(ctx, []byte("k"))
			return string(v), err
		},
		"Scan": func(ctx context.Context, e *engine.Engine) (got string, err error) {
			for kv, err := range e.Scan(ctx, prefix("k")) {
				if err != nil {
					return "", err
				}
				got = string(kv.Value)
			}
			return got, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, m := openMem(t, engine.Options{})
			update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "k", "old") })
			release := heldUpdate(t, e, m, "k", "new")
			ending, cancel := context.WithCancel(ctx)
			defer cancel()
			reads := func(int) error { cancel(); return nil } // the store is read before ctx ends
			m.Before(storetest.OpState, reads)
			m.Before(storetest.OpScanState, reads)
			if v, err := read(ending, e); !errors.Is(err, context.Canceled) {
				t.Errorf("read %q, %v while it was not durable", v, err)
			}
			release()
			if v, err := read(ctx, e); v != "new" || err != nil {
				t.Error(v, err)
			}
		})
	}
}

func TestScanReturnsARangeInOrderPageByPage(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	putMany(t, e, "a/", 0, 10)
	want := putMany(t, e, "b/", 0, 3000)
	putMany(t, e, "c/", 0, 10)
	wantKeys(t, collect(t, e.Scan(ctx, prefix("b/"))), want...)
	wantKeys(t, collect(t, e.Scan(ctx, engine.Range{Prefix: []byte("b/"), After: []byte("b/02000")})), want[2001:]...)
	wantKeys(t, collect(t, e.Scan(ctx, engine.Range{Prefix: []byte("b/"), After: []byte("a")})), want...)
	wantKeys(t, collect(t, e.Scan(ctx, engine.Range{Prefix: []byte("b/"), After: []byte("c")})))
	if all := collect(t, e.Scan(ctx, engine.Range{})); len(all) != 3020 || !slices.IsSorted(all) {
		t.Errorf("%d keys", len(all))
	}
	n := 0
	for range e.Scan(ctx, prefix("b/")) {
		if n++; n == 100 {
			break
		}
	}
	long := engine.Range{Prefix: make([]byte, limits.KeyBytes+1)}
	for _, err := range e.Scan(ctx, long) {
		if !errors.As(err, new(*engine.ArgumentError)) {
			t.Error(err)
		}
	}
}

func TestALoopOverKeysMayUseTheEngine(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	want := putMany(t, e, "k", 0, 500)
	var got []string
	for kv, err := range e.Scan(ctx, prefix("k")) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(kv.Key)+"="+string(kv.Value))
		update(t, e, func(tx *engine.Tx) {
			if err := tx.Delete(kv.Key); err != nil {
				t.Fatal(err)
			}
		})
	}
	wantKeys(t, got, want...)
	wantKeys(t, collect(t, e.Scan(ctx, prefix("k"))))
}

func TestIterationsEndWithTheirContextAndTheEngine(t *testing.T) {
	iterations := map[string]func(ctx context.Context, e *engine.Engine, each func()) error{
		"keys": func(ctx context.Context, e *engine.Engine, each func()) error {
			for _, err := range e.Scan(ctx, engine.Range{}) {
				if err != nil {
					return err
				}
				each()
			}
			return nil
		},
		"claims": func(ctx context.Context, e *engine.Engine, each func()) error {
			for _, err := range e.Admin().Claims(ctx, storage.Bucket{Scope: "billing", Week: weekOf(t, noon)}, nil) {
				if err != nil {
					return err
				}
				each()
			}
			return nil
		},
	}
	for name, iterate := range iterations {
		t.Run(name, func(t *testing.T) {
			e, m := openMem(t, engine.Options{})
			fill(t, e)
			n := 0
			if err := iterate(ctx, e, func() { n++ }); err != nil || n != 1000 {
				t.Fatalf("%d of 1000, %v", n, err)
			}
			ending, cancel := context.WithCancel(ctx)
			n = 0
			err := iterate(ending, e, func() { n++; cancel() })
			if !errors.Is(err, context.Canceled) || n > 600 {
				t.Errorf("after the context's end: %d, %v", n, err)
			}
			again := open(t, m.CrashClone(0), engine.Options{})
			n = 0
			err = iterate(ctx, again, func() {
				if n++; n == 1 {
					if err := again.Close(); err != nil {
						t.Error(err)
					}
				}
			})
			if !errors.Is(err, engine.ErrClosed) || n > 600 {
				t.Errorf("after Close: %d, %v", n, err)
			}
		})
	}
}

func fill(t testing.TB, e *engine.Engine) {
	t.Helper()
	putMany(t, e, "k", 0, 1000)
	update(t, e, func(tx *engine.Tx) {
		for i := range 1000 {
			wantTx(t, tx, event(fmt.Sprintf("%04d", i)), engine.Claimed)
			for _, group := range []string{"g", "gg"} {
				p := engine.OffsetKey{Group: group, Topic: fmt.Sprint("t", i%10), Partition: int32(i / 10)}
				if err := tx.SetOffset(p, engine.Offset{Next: int64(i)}); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func TestIterationOverADamagedStoreStopsTheEngine(t *testing.T) {
	for name, op := range map[string]storetest.Op{"keys": storetest.OpScanState, "claims": storetest.OpScan} {
		t.Run(name, func(t *testing.T) {
			e, m := openMem(t, engine.Options{})
			fill(t, e)
			m.FailAt(op, 1, storage.ErrDamaged)
			var last error
			if name == "keys" {
				for _, last = range e.Scan(ctx, engine.Range{}) {
				}
			} else {
				for _, last = range e.Admin().Claims(ctx, storage.Bucket{Scope: "billing", Week: weekOf(t, noon)}, nil) {
				}
			}
			if !errors.Is(last, storage.ErrDamaged) || !errors.Is(e.Err(), engine.ErrStopped) {
				t.Errorf("it ended with %v, the engine says %v", last, e.Err())
			}
		})
	}
}

func TestClaimsReturnsOneBucketWithItsRecords(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	store := &tampered{Mem: m}
	e := open(t, store, engine.Options{})
	other := event("other scope")
	other.Scope = "billing\x00"
	early := event("week before")
	early.Time = noon.AddDate(0, 0, -7)
	for _, ev := range []engine.Event{other, early} {
		wantVerdict(t, claim(t, e, ev), engine.Claimed)
	}
	want := map[string]engine.ClaimRecord{}
	ids := []string{"b", "a", "\x00", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "0123456789abcdef"}
	for _, id := range ids {
		want[id] = claim(t, e, event(id)).Record
	}
	bucket := storage.Bucket{Scope: "billing", Week: weekOf(t, noon)}
	var order []string
	for c, err := range e.Admin().Claims(ctx, bucket, nil) {
		if err != nil || c.Record != want[string(c.ID)] {
			t.Fatalf("%q: %+v, %v", c.ID, c.Record, err)
		}
		order = append(order, string(c.ID))
	}
	if len(order) != len(ids) {
		t.Fatalf("%q", order)
	}
	for i, id := range order {
		var rest []string
		for c, err := range e.Admin().Claims(ctx, bucket, []byte(id)) {
			if err != nil {
				t.Fatal(err)
			}
			rest = append(rest, string(c.ID))
		}
		wantKeys(t, rest, order[i+1:]...)
	}

	// A claim that is not durable is not returned.
	m.HoldSyncs()
	done := make(chan engine.Result, 1)
	go func() { done <- claim(t, e, event("late")) }()
	awaitHeld(t, m)
	for range 20 {
		ending, cancel := context.WithCancel(ctx)
		store.scan = func(_ context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
			defer cancel() // the store was read before ctx ends
			return m.Scan(ctx, span, started, fn)
		}
		for c, err := range e.Admin().Claims(ending, bucket, nil) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%q, %v while a claim was not durable", c.ID, err)
			}
		}
	}
	m.ReleaseSyncs()
	wantVerdict(t, receive(t, done), engine.Claimed)
}

func TestOffsetsReturnsOneGroup(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	fill(t, e)
	seen, err := e.Admin().Offsets(ctx, "g")
	if err != nil {
		t.Fatal(err)
	}
	for p, o := range seen {
		if want, found, err := e.Admin().Offset(ctx, p); p.Group != "g" || !found || err != nil || o != want {
			t.Fatal(p, o, want, found, err)
		}
	}
	if len(seen) != 1000 {
		t.Errorf("%d offsets", len(seen))
	}
}

func TestKeySpacesAreSeparate(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	a, ab := keyspace.New("a"), keyspace.New("ab")
	update(t, e, func(tx *engine.Tx) {
		for _, k := range []string{"k", "b\x00k", "\x00k"} {
			mustPut(t, tx, k, "application")
			if err := errors.Join(driver.TxIn(tx, a).Put([]byte(k), []byte("a")), driver.TxIn(tx, ab).Put([]byte(k), []byte("ab"))); err != nil {
				t.Fatal(err)
			}
		}
		mustPut(t, tx, "xa\x00k", "application")
		if err := driver.TxIn(tx, a).Delete([]byte("\x00k")); err != nil {
			t.Fatal(err)
		}
		wantKeys(t, collect(t, driver.TxIn(tx, a).Scan(engine.Range{})), "b\x00k=a", "k=a")
	})
	wantKeys(t, collect(t, e.Scan(ctx, engine.Range{})), "\x00k=application", "b\x00k=application", "k=application", "xa\x00k=application")
	wantKeys(t, collect(t, driver.In(e, a).Scan(ctx, engine.Range{})), "b\x00k=a", "k=a")
	wantKeys(t, collect(t, driver.In(e, ab).Scan(ctx, engine.Range{After: []byte("b")})), "b\x00k=ab", "k=ab")
	if v, found, err := driver.In(e, a).Get(ctx, []byte("k")); string(v) != "a" || !found || err != nil {
		t.Error(string(v), found, err)
	}
	err := e.Update(ctx, func(outer *engine.Tx) error {
		wantKeys(t, collect(t, driver.TxIn(outer, a).Scan(prefix("k"))), "k=a")
		update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "kk", "application") })
		if err := driver.TxIn(outer, a).Put([]byte("other"), nil); err != nil {
			return err
		}
		update(t, e, func(tx *engine.Tx) {
			if err := driver.TxIn(tx, a).Put([]byte("kk"), nil); err != nil {
				t.Error(err)
			}
		})
		return nil
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Error("a phantom in a space:", err)
	}
}

// A limit ends an iteration, reads no more of the store than it needs, and the transaction
// conflicts with no key after it.
func TestLimitOfARange(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	all := putMany(t, e, "k", 0, 200)
	for _, limit := range []int{1, 2, 63, 64, 65, 199, 200, 201} {
		want := all[:min(limit, len(all))]
		wantKeys(t, collect(t, e.Scan(ctx, engine.Range{Prefix: []byte("k"), Limit: limit})), want...)
		update(t, e, func(tx *engine.Tx) {
			wantKeys(t, collect(t, tx.Scan(engine.Range{Prefix: []byte("k"), Limit: limit})), want...)
		})
	}
	for key, want := range map[string]error{"k00001": engine.ErrConflict, "k00000x": engine.ErrConflict, "k00001x": nil, "k00002": nil} {
		err := e.Update(ctx, func(tx *engine.Tx) error {
			wantKeys(t, collect(t, tx.Scan(engine.Range{Prefix: []byte("k"), Limit: 2})), "k00000=0", "k00001=1")
			update(t, e, func(tx *engine.Tx) { mustPut(t, tx, key, "1") })
			return tx.Put([]byte("own"), nil)
		})
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%s was written: %v, want %v", key, err, want)
		}
		update(t, e, func(tx *engine.Tx) {
			if err := tx.Delete([]byte(key)); err != nil {
				t.Error(err)
			}
			mustPut(t, tx, "k00001", "1")
			mustPut(t, tx, "k00002", "2")
		})
	}
	update(t, e, func(tx *engine.Tx) { // own writes count, and deleted keys do not
		mustPut(t, tx, "k00000x", "own")
		if err := tx.Delete([]byte("k00000")); err != nil {
			t.Error(err)
		}
		wantKeys(t, collect(t, tx.Scan(engine.Range{Prefix: []byte("k"), Limit: 3})), "k00000x=own", "k00001=1", "k00002=2")
	})
	var refused *engine.ArgumentError
	for _, err := range e.Scan(ctx, engine.Range{Limit: -1}) {
		if !errors.As(err, &refused) {
			t.Error(err)
		}
	}
}

// Reclaim ends with its context, and with the engine.
func TestReclaimOfAKeySpace(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	space := driver.In(e, keyspace.New("a"))
	if err := space.Reclaim(ctx, []byte("prefix")); err != nil || m.Calls(storetest.OpReclaimState) != 1 {
		t.Error(err)
	}
	ended, end := context.WithCancel(ctx)
	m.Before(storetest.OpReclaimState, func(int) error {
		end()
		return nil
	})
	if err := space.Reclaim(ended, nil); !errors.Is(err, context.Canceled) || e.Err() != nil {
		t.Error(err, e.Err())
	}
	broken := errors.New("broken")
	m.FailAt(storetest.OpReclaimState, 1, broken)
	if err := space.Reclaim(ctx, nil); !errors.Is(err, broken) || !errors.Is(e.Err(), engine.ErrStopped) {
		t.Error(err, e.Err())
	}
}

// Reclaim that waits for another one ends with its context, too.
func TestReclaimThatWaitsEndsWithItsContext(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	space := driver.In(e, keyspace.New("test"))
	begun, leave := make(chan struct{}, 2), make(chan struct{})
	end := sync.OnceFunc(func() { close(leave) })
	t.Cleanup(end) // before Close
	m.Before(storetest.OpReclaimState, func(int) error {
		begun <- struct{}{}
		<-leave
		return nil
	})
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- space.Reclaim(ctx, nil) }()
	receive(t, begun)
	waiting, cancel := context.WithCancel(ctx)
	go func() { second <- space.Reclaim(waiting, nil) }()
	cancel()
	if err := receive(t, second); !errors.Is(err, context.Canceled) || e.Err() != nil {
		t.Errorf("the second one: %v", err)
	}
	end()
	if err := receive(t, first); err != nil {
		t.Errorf("the first one: %v", err)
	}
}
