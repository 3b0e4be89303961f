package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

func bucketsInKeyOrder(e *env) {
	list := func() (got []storage.Bucket) {
		e.Helper()
		if err := e.s.Buckets(func(b storage.Bucket) error { got = append(got, b); return nil }); err != nil {
			e.Fatalf("Buckets: %v", err)
		}
		return got
	}
	expect := func(want ...storage.Bucket) func() {
		return func() {
			e.Helper()
			if got := list(); !slices.Equal(got, want) {
				e.Errorf("Buckets shows %v, want %v", got, want)
			}
		}
	}
	e.inEveryForm(expect())
	// In key order: 0x00 in a scope sorts after the end of the scope and before all other bytes.
	want := []storage.Bucket{
		bucket("\x00", week), bucket("a", weekbucket.Min), bucket("a", week), bucket("a", week+1), bucket("a", weekbucket.Max),
		bucket("a\x00", week), bucket("ab", week), bucket("b", week-1), bucket("\xff", week),
	}
	for _, i := range []int{4, 0, 8, 2, 6, 1, 3, 5, 7} {
		if i == 6 {
			e.settle()
		}
		e.claims(claim(want[i], "x", "1"), claim(want[i], "y", "1"))
	}
	e.inEveryForm(expect(want...))

	// One claim less is not the last one.
	e.claims(unclaim(want[2], "x"), unclaim(want[8], "y"))
	e.inEveryForm(expect(want...))
	e.claims(unclaim(want[2], "y"), unclaim(want[8], "x"))
	e.inEveryForm(expect(slices.Concat(want[:2], want[3:8])...))
	e.claims(claim(want[2], "x", "2"))
	e.inEveryForm(expect(want[:8]...))

	calls := 0
	err := e.s.Buckets(func(storage.Bucket) error { calls++; return errStop })
	if !errors.Is(err, errStop) || calls != 1 {
		e.Errorf("Buckets returned %v after %d calls, but the first call said %v", err, calls, errStop)
	}
}

func bucketsCostsNoScan(e *env) {
	n := 3000
	if testing.Short() {
		n = 1500
	}
	for i := range 5 {
		e.claims(numbered(bucket("a", week+weekbucket.Week(i)), 0, n)...)
	}
	for _, form := range []string{"applied", "settled"} {
		took := func(f func() error) time.Duration {
			begin := time.Now()
			if err := f(); err != nil {
				e.Fatalf("%v", err)
			}
			return time.Since(begin)
		}
		// Only the fastest call counts, and there are more calls if all were delayed.
		scan, buckets := time.Hour, time.Hour
		for round := 0; round < 7 || round < 200 && buckets > scan/4; round++ {
			scan = min(scan, took(func() error {
				return e.s.Scan(context.Background(), storage.Span{}, func() {}, func(_, _ []byte) error { return nil })
			}))
			buckets = min(buckets, took(func() error { return e.s.Buckets(func(storage.Bucket) error { return nil }) }))
		}
		if buckets > scan/4 {
			e.Errorf("%s: Buckets took %v for 5 buckets, a Scan of %d claims %v", form, buckets, 5*n, scan)
		}
		e.settle()
	}
}

func scanInKeyOrder(e *env) {
	e.within(e.h.patience, "Scan of an empty store", func() error {
		begun := 0
		err := e.s.Scan(context.Background(), storage.Span{}, func() { begun++ }, func(_, _ []byte) error { return errStop })
		if err == nil && begun != 1 {
			err = fmt.Errorf("started was called %d times", begun)
		}
		return err
	})
	for i, scope := range trickyScopes {
		if i == len(trickyScopes)/2 {
			e.settle()
		}
		for w := week; w < week+3; w++ {
			var claims []storage.ClaimWrite
			for _, id := range trickyIDs {
				claims = append(claims, claim(bucket(scope, w), id, scope+id))
			}
			e.claims(claims...)
		}
	}
	e.inEveryForm(func() {
		e.Helper()
		var got []string
		err := e.s.Scan(context.Background(), storage.Span{}, func() {}, func(key, record []byte) error {
			b, id, err := storage.ParseKey(key)
			if err == nil && string(record) != b.Scope+string(id) {
				err = fmt.Errorf("%v %q has the record %q", b, id, record)
			}
			got = append(got, string(key))
			return err
		})
		if err != nil {
			e.Errorf("Scan: %v", err)
		}
		if want := len(trickyScopes) * 3 * len(trickyIDs); len(got) != want || !slices.IsSorted(got) {
			e.Errorf("Scan has shown %d claims, sorted: %v; want %d", len(got), slices.IsSorted(got), want)
		}
	})
	calls := 0
	err := e.s.Scan(context.Background(), storage.Span{}, func() {}, func(_, _ []byte) error {
		if calls++; calls == 3 {
			return errStop
		}
		return nil
	})
	if !errors.Is(err, errStop) || calls != 3 {
		e.Errorf("Scan returned %v after %d calls, but the third call said %v", err, calls, errStop)
	}
}

// scanSeesOneMoment changes all data while a scan is at its first claim, with enough bytes to make
// a file grow.
func scanSeesOneMoment(e *env) {
	old, fresh := bucket("a", week), bucket("a", week+1)
	e.claims(numbered(old, 0, 300)...)
	e.settle()
	e.claims(numbered(fresh, 0, 300)...)
	for _, form := range []string{"while some is fresh", "while all is settled"} {
		before := e.told.view.clone()
		got := map[string][]byte{}
		var order []string
		begun := false
		err := e.s.Scan(context.Background(), storage.Span{}, func() { begun = true }, func(key, record []byte) error {
			if !begun {
				e.Errorf("a claim was read before started was called")
			}
			if len(got) == 0 {
				e.within(e.h.patience, "Apply during a scan", func() error { return e.rewrite(old, fresh) })
			}
			got[string(key)] = append([]byte{}, record...)
			order = append(order, string(key))
			return nil
		})
		if err != nil {
			e.Fatalf("Scan: %v", err)
		}
		var d differences
		d.maps("claim", got, before.claims)
		if d.String() != "" || !slices.IsSorted(order) {
			e.Fatalf("%s: the scan has not returned the state at its start: %s", form, d.String())
		}
		e.check("after the scan")
		e.settle()
	}
}

// rewrite removes, replaces and adds claims throughout the two buckets, and waits for each batch.
func (e *env) rewrite(buckets ...storage.Bucket) error {
	for _, b := range buckets {
		for i := 0; i < 300; i += 30 {
			batch := &storage.Batch{
				Seq:   e.told.view.lastSeq + 1,
				State: []storage.StateWrite{set(fmt.Sprint("ballast ", i), string(noise(uint64(i), 200_000)))},
			}
			for j := i; j < i+30; j++ {
				id := fmt.Sprintf("id-%06d", j)
				switch j % 3 {
				case 0:
					batch.Claims = append(batch.Claims, unclaim(b, id))
				case 1:
					batch.Claims = append(batch.Claims, claim(b, id, fmt.Sprint("replaced by ", batch.Seq)))
				}
				batch.Claims = append(batch.Claims, claim(b, fmt.Sprint(id, " added by ", batch.Seq), "new"))
			}
			wait, err := e.s.Apply(batch)
			if err == nil {
				err = wait()
			}
			if err != nil {
				return err
			}
			e.told.apply(cloneBatch(batch))
			e.told.confirm(batch.Seq)
			e.entries[batch.Seq] = nil
		}
	}
	return nil
}

// scanOfASpan compares scans with a map, for spans that begin and end inside buckets and between
// them.
func scanOfASpan(e *env) {
	scopes := []string{"a", "a\x00", "ab", "b"}
	for i, scope := range scopes {
		if i == len(scopes)/2 {
			e.settle()
		}
		for w := week; w < week+2; w++ {
			e.claims(claim(bucket(scope, w), "gone", "x"))
			e.claims(append(numbered(bucket(scope, w), 0, 20), unclaim(bucket(scope, w), "gone"))...)
		}
	}
	middle := bucket("a\x00", week+1)
	ends := [][]byte{nil, []byte("a"), middle.AppendPrefix(nil), key(middle, "id-000007"), key(middle, "id-"), key(middle, "id-000019"),
		append(key(middle, "id-000019"), 0), bucket("aa", week).AppendPrefix(nil), []byte("b"), []byte("c"), {0xFF}}
	e.inEveryForm(func() {
		e.Helper()
		for _, prefix := range ends {
			for _, from := range ends {
				span := storage.Span{Prefix: prefix, From: from}
				var got []string
				err := e.s.Scan(context.Background(), span, func() {}, func(key, _ []byte) error {
					got = append(got, string(key))
					return nil
				})
				want := sortedKeys(e.told.view.claims, string(prefix))
				want = slices.DeleteFunc(want, func(k string) bool { return k < string(from) })
				if err != nil || !slices.Equal(got, want) {
					e.Errorf("Scan of %q shows %d claims, %v, want %d", span, len(got), err, len(want))
				}
			}
		}
	})
}

func scanStopsWithContext(e *env) {
	const n = 20_000
	for i := range 4 {
		e.claims(numbered(bucket("a", week), i*n/4, (i+1)*n/4)...)
	}
	for _, form := range []string{"applied", "settled"} {
		ctx, cancel := context.WithCancel(context.Background())
		calls := 0
		err := e.s.Scan(ctx, storage.Span{}, func() {}, func(_, _ []byte) error {
			if calls++; calls == 10 {
				cancel()
			}
			return nil
		})
		cancel()
		if !errors.Is(err, context.Canceled) {
			e.Errorf("%s: a cancelled Scan returned %v", form, err)
		}
		if calls >= n {
			e.Errorf("%s: a Scan cancelled at claim 10 continued to claim %d", form, calls)
		}
		e.settle()
	}
}
