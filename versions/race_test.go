package versions_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/versions"
)

// Transactions read a row and put its next version, concurrently with repetitions of old versions,
// Prune, Erase of another row and readers: no update is lost, and no reader sees a row go back to
// an older version.
func TestConcurrentClaimsTransactionsAndScrapes(t *testing.T) {
	const keys, workers, each = 3, 3, 60
	e := openEngine(t, newMem(), newClock())
	table := mustTable(t, e, versions.Options{})
	name := func(i int) []byte { return fmt.Append(nil, "key", i) }
	for i := range keys {
		put(t, e, table, row(string(name(i)), 0, "0"))
	}
	next := func(key []byte) error {
		return e.Update(ctx, func(tx *engine.Tx) error {
			in := table.In(tx)
			r, found, err := in.Get("acme", key)
			if err != nil || !found {
				return fmt.Errorf("%s: %v %w", key, found, err)
			}
			return in.Put(row(string(key), r.Version+1, fmt.Sprint(r.Version+1)))
		}, engine.Retries(10_000))
	}
	var writers, others sync.WaitGroup
	for w := range workers {
		writers.Go(func() {
			for i := range each {
				if err := next(name((w + i) % keys)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running, stop := context.WithCancel(ctx)
	loop := func(fn func(i int) error) {
		others.Go(func() {
			for i := 0; running.Err() == nil; i++ {
				if err := fn(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	loop(func(int) error {
		_, err := table.Prune(ctx)
		return err
	})
	loop(func(i int) error { return table.Erase(ctx, "acme", fmt.Append(nil, "gone", i%2), uint64(i)) })
	loop(func(i int) error {
		return e.Update(ctx, func(tx *engine.Tx) error {
			old := rand.Uint64N(10)
			in := table.In(tx)
			if err := in.Put(row(fmt.Sprint("gone", i%2), old, "gone")); err != nil {
				return err
			}
			seen, err := table.Get(ctx, "acme", name(0))
			if err != nil || seen.Row.Version < old {
				return err
			}
			return in.Put(row(string(name(0)), old, fmt.Sprint(old))) // it existed already
		})
	})
	seen := [keys]uint64{}
	loop(func(i int) error {
		if i%2 == 0 {
			a, err := table.Get(ctx, "acme", name(i%keys))
			return see(t, &seen, a.Row, err)
		}
		rows, err := table.Scan(ctx, versions.Selection{Tenant: "acme", KeyPrefix: []byte("key")})
		if err != nil {
			return err
		}
		n := 0
		for r, err := range rows.All {
			if err := see(t, &seen, r, err); err != nil {
				return err
			}
			n++
		}
		if n != keys {
			t.Errorf("a scan shows %d rows", n)
		}
		return nil
	})
	writers.Wait()
	stop()
	others.Wait()
	total := uint64(0)
	for i := range keys {
		total += get(t, table, string(name(i))).Row.Version
	}
	if total != workers*each {
		t.Errorf("%d of %d updates remain", total, workers*each)
	}
	verify(t, e)
}

// see compares a row with the versions that were read before.
func see(t *testing.T, seen *[3]uint64, r versions.Row, err error) error {
	if err != nil {
		return err
	}
	i, err := strconv.Atoi(string(r.Key[3:]))
	if err != nil {
		return err
	}
	if string(r.Payload) != fmt.Sprint(r.Version) {
		t.Errorf("%s has version %d and payload %s", r.Key, r.Version, r.Payload)
	}
	if r.Version < seen[i] {
		t.Errorf("%s went back from version %d to %d", r.Key, seen[i], r.Version)
	}
	seen[i] = r.Version
	return nil
}
