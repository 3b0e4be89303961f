package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// concurrentReads runs every read during batches. A read sees everything that was applied before it
// started.
func concurrentReads(e *env) {
	const batches = 120
	b := bucket("a", week)
	var applied atomic.Int64
	var wg, begun sync.WaitGroup
	stop := make(chan struct{})
	problems := make(chan error, 100)
	waits := make(chan func() error, batches)

	number := func(v []byte) (n int64) { _, _ = fmt.Sscan(string(v), &n); return n }
	read := func(what string, f func(low int64) (int64, error)) {
		begun.Add(1)
		begin := sync.OnceFunc(begun.Done)
		wg.Go(func() {
			defer begin()
			if err := readUntil(stop, &applied, begin, f); err != nil {
				problems <- fmt.Errorf("%s: %w", what, err)
			}
		})
	}
	read("Claim", func(low int64) (int64, error) {
		v, _, err := e.s.Claim(key(b, "newest"))
		return number(v), err
	})
	read("Claim of an older one", func(low int64) (int64, error) {
		if low == 0 {
			return 0, nil
		}
		v, _, err := e.s.Claim(key(b, fmt.Sprint("of batch ", (low+1)/2)))
		if number(v) != (low+1)/2 {
			return 0, err
		}
		return low, err
	})
	read("State", func(low int64) (int64, error) {
		v, _, err := e.s.State([]byte("newest"))
		return number(v), err
	})
	read("ScanState", func(low int64) (seen int64, err error) {
		err = e.s.ScanState(storage.Span{Prefix: []byte("newest")}, func(_, v []byte) error { seen = number(v); return nil })
		return seen, err
	})
	read("Journal", func(low int64) (seen int64, err error) {
		err = e.s.Journal(uint64(low), func(seq uint64, entry []byte) error {
			if number(entry) != int64(seq) {
				return fmt.Errorf("entry %d is %q", seq, entry)
			}
			seen = max(seen, int64(seq))
			return nil
		})
		return seen, err
	})
	read("Buckets", func(low int64) (seen int64, err error) {
		err = e.s.Buckets(func(storage.Bucket) error { seen++; return nil })
		if seen == 1 { // from the first batch on
			seen = low
		}
		return seen, err
	})
	read("Scan", func(low int64) (seen int64, err error) {
		var last []byte
		err = e.s.Scan(context.Background(), storage.Span{}, func() {}, func(key, record []byte) error {
			if bytes.Compare(last, key) >= 0 {
				return fmt.Errorf("key %x after %x", key, last)
			}
			last = append(last[:0], key...)
			seen = max(seen, number(record))
			return nil
		})
		return low, err // which batches it sees is not checked here
	})
	read("Usage, BucketBytes, Verify", func(low int64) (int64, error) {
		_, err := e.s.Usage()
		if err == nil {
			_, err = e.s.BucketBytes(b)
		}
		if err == nil {
			err = e.s.Verify(context.Background(), func(problem string) { err = fmt.Errorf("reported %q", problem) })
		}
		_ = e.s.Identity()
		_ = e.s.LastSeq()
		return low, err
	})
	wg.Go(func() {
		for wait := range waits {
			if err := wait(); err != nil {
				problems <- fmt.Errorf("wait: %w", err)
			}
		}
	})

	e.within(4*e.h.patience, "a writer beside readers", func() error {
		defer wg.Wait()
		defer close(stop)
		defer close(waits)
		for i := 1; i <= batches; i++ {
			n := fmt.Append(nil, i)
			batch := &storage.Batch{
				Seq:     uint64(i),
				Claims:  []storage.ClaimWrite{claim(b, "newest", string(n)), claim(b, fmt.Sprint("of batch ", i), string(n))},
				State:   []storage.StateWrite{set("newest", string(n))},
				Journal: n,
			}
			wait, err := e.s.Apply(batch)
			if err != nil {
				return err
			}
			applied.Store(int64(i))
			waits <- wait
			e.told.apply(batch)
			e.entries[batch.Seq] = n
			if i == batches/2 {
				begun.Wait() // each reader has read before the last batches
			}
			time.Sleep(100 * time.Microsecond)
		}
		return nil
	})
	e.told.confirm(batches)
	select {
	case err := <-problems:
		e.Fatalf("%v", err)
	default:
	}
	e.check("afterwards")
}

// readUntil repeats a read until stop is closed, and then once more. It calls begin after each read
// that started after a batch was applied.
func readUntil(stop <-chan struct{}, applied *atomic.Int64, begin func(), f func(low int64) (int64, error)) error {
	for last := false; ; {
		low := applied.Load()
		seen, err := f(low)
		if err == nil && seen < low {
			err = fmt.Errorf("it has seen batch %d, but %d was applied before it began", seen, low)
		}
		if err != nil || last {
			return err
		}
		if low > 0 {
			begin()
		}
		select {
		case <-stop:
			last = true
		case <-time.After(200 * time.Microsecond):
		}
	}
}

// everythingBesideMaintenance runs Drop, Reclaim, TrimJournal, Apply and all reads of the whole
// store concurrently.
func everythingBesideMaintenance(e *env) {
	const rounds = 4
	stays := bucket("a", week+100)
	e.claims(numbered(stays, 0, 50)...)
	for i := range rounds {
		e.claims(numbered(bucket("a", week+weekbucket.Week(i)), 0, 100)...)
		if i == rounds/2 {
			e.settle()
		}
	}
	s, dir := e.s, e.dir
	first := e.told.view.lastSeq
	beside := []func(i int) error{
		func(i int) error { return s.Drop([]storage.Bucket{bucket("a", week+weekbucket.Week(i))}) },
		func(i int) error {
			return s.Reclaim(context.Background(), []storage.Bucket{bucket("a", week+weekbucket.Week(max(0, i-1)))})
		},
		func(i int) error { return s.TrimJournal(uint64(i)) },
		func(i int) error {
			wait, err := s.Apply(&storage.Batch{Seq: first + uint64(i) + 1, Claims: numbered(stays, 50+10*i, 60+10*i)})
			if err != nil {
				return err
			}
			return wait()
		},
		func(int) error {
			var problem error
			err := s.Verify(context.Background(), func(p string) { problem = fmt.Errorf("reported %q", p) })
			return errors.Join(err, problem)
		},
		func(int) error {
			seen := 0
			err := s.Scan(context.Background(), storage.Span{}, func() {}, func(k, _ []byte) error {
				if bucketOf(k) == stays {
					seen++
				}
				return nil
			})
			if err == nil && seen < 50 {
				err = fmt.Errorf("a scan has seen %d of the remaining claims", seen)
			}
			return err
		},
		func(i int) error { return s.Backup(context.Background(), fmt.Sprint(dir, "-beside-", i)) },
		func(i int) error { return s.WriteSidecar("filter", writerOf(noise(uint64(i), 1000))) },
		func(int) error { _, err := s.Usage(); return err },
		func(int) error { return s.Buckets(func(storage.Bucket) error { return nil }) },
	}
	for i := range rounds {
		results := make(chan error, len(beside))
		for _, f := range beside {
			go func() { results <- f(i) }()
		}
		e.within(e.h.patience, "everything at the same time", func() (err error) {
			for range beside {
				err = errors.Join(err, <-results)
			}
			return err
		})
	}
	for i := range rounds {
		batch := &storage.Batch{Seq: first + uint64(i) + 1, Claims: numbered(stays, 50+10*i, 60+10*i)}
		e.told.apply(batch)
		e.told.confirm(batch.Seq)
		e.told.drop([]storage.Bucket{bucket("a", week+weekbucket.Week(i))})
	}
	e.trimmed, e.hidden = rounds-1, rounds-1
	e.expectSidecar("afterwards", "filter", noise(rounds-1, 1000))
	e.inEveryForm(func() {})
	for i := range rounds {
		e.onOther(fmt.Sprint(dir, "-beside-", i), func(s storage.Store) {
			n := int(s.LastSeq() - first)
			for j := range 50 + 10*n + 10 {
				_, found, err := s.Claim(key(stays, fmt.Sprintf("id-%06d", j)))
				if err != nil || found != (j < 50+10*n) {
					e.Fatalf("a backup that holds batch %d: claim %d is there: %v, %v", s.LastSeq(), j, found, err)
				}
			}
		})
	}
}
