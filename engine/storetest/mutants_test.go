package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A mutant breaks one rule of the contract; the named check must catch it.
type mutant struct {
	name   string
	caught string
	// wrap breaks a store that was just opened, harness breaks its harness; one of them is set.
	wrap    func(s *broken)
	harness func(h *Harness, d *Disk)
}

// broken is a Mem of which methods are replaced.
type broken struct {
	*Mem
	identity     func() storage.Identity
	foundSeq     func() uint64
	apply        func(*storage.Batch) (func() error, error)
	claim, state func([]byte) ([]byte, bool, error)
	scanState    func(storage.Span, func(k, v []byte) error) error
	buckets      func(func(storage.Bucket) error) error
	scan         func(context.Context, storage.Span, func(), func(k, v []byte) error) error
	journal      func(uint64, func(uint64, []byte) error) error
	trim         func(uint64) error
	drop         func([]storage.Bucket) error
	reclaim      func(context.Context, []storage.Bucket) error
	reclaimState func(context.Context, storage.Span) error
	usage        func() (storage.Usage, error)
	bucketBytes  func(storage.Bucket) (uint64, error)
	writeSidecar func(string, func(io.Writer) error) error
	readSidecar  func(string, func(io.Reader, int64) error) error
	backup       func(context.Context, string) error
	verify       func(context.Context, func(string)) error
	acquire      func() error
	close        func() error
}

func newBroken(m *Mem) *broken {
	return &broken{
		Mem: m, identity: m.Identity, foundSeq: m.LastSeq, apply: m.Apply, claim: m.Claim, state: m.State,
		scanState: m.ScanState, buckets: m.Buckets, scan: m.Scan, journal: m.Journal, trim: m.TrimJournal, drop: m.Drop,
		reclaim: m.Reclaim, reclaimState: m.ReclaimState, usage: m.Usage, bucketBytes: m.BucketBytes, writeSidecar: m.WriteSidecar,
		readSidecar: m.ReadSidecar, backup: m.Backup, verify: m.Verify, acquire: m.Acquire, close: m.Close,
	}
}

func (s *broken) Identity() storage.Identity                                { return s.identity() }
func (s *broken) LastSeq() uint64                                           { return s.foundSeq() }
func (s *broken) Apply(b *storage.Batch) (func() error, error)              { return s.apply(b) }
func (s *broken) Claim(k []byte) ([]byte, bool, error)                      { return s.claim(k) }
func (s *broken) State(k []byte) ([]byte, bool, error)                      { return s.state(k) }
func (s *broken) ScanState(p storage.Span, f func(k, v []byte) error) error { return s.scanState(p, f) }
func (s *broken) Buckets(f func(storage.Bucket) error) error                { return s.buckets(f) }
func (s *broken) Scan(ctx context.Context, p storage.Span, started func(), f func(k, v []byte) error) error {
	return s.scan(ctx, p, started, f)
}
func (s *broken) Journal(from uint64, f func(uint64, []byte) error) error { return s.journal(from, f) }
func (s *broken) TrimJournal(below uint64) error                          { return s.trim(below) }
func (s *broken) Drop(b []storage.Bucket) error                           { return s.drop(b) }
func (s *broken) Reclaim(ctx context.Context, b []storage.Bucket) error   { return s.reclaim(ctx, b) }
func (s *broken) ReclaimState(ctx context.Context, span storage.Span) error {
	return s.reclaimState(ctx, span)
}
func (s *broken) Usage() (storage.Usage, error)                        { return s.usage() }
func (s *broken) BucketBytes(b storage.Bucket) (uint64, error)         { return s.bucketBytes(b) }
func (s *broken) WriteSidecar(n string, w func(io.Writer) error) error { return s.writeSidecar(n, w) }
func (s *broken) ReadSidecar(n string, fn func(io.Reader, int64) error) error {
	return s.readSidecar(n, fn)
}
func (s *broken) Backup(ctx context.Context, dir string) error          { return s.backup(ctx, dir) }
func (s *broken) Verify(ctx context.Context, report func(string)) error { return s.verify(ctx, report) }
func (s *broken) Close() error                                          { return s.close() }

func (s *broken) Acquire() error { return s.acquire() }

func (s *broken) locked(f func()) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	f()
}

// await waits until ok, which runs under the lock of the disk, is true: so that a mutant fails at
// the intended moment, and not by chance. If that moment does not come, it returns.
func (s *broken) await(ok func() bool) {
	for end, is := time.Now().Add(time.Second), false; !is && time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		s.locked(func() { is = ok() })
	}
}

// awaitBatch waits until another batch is applied.
func (s *broken) awaitBatch() {
	var before uint64
	s.locked(func() { before = s.history.view.lastSeq })
	s.await(func() bool { return s.history.view.lastSeq > before })
}

// edit makes Apply change a copy of the batch first.
func edit(f func(b *storage.Batch)) func(s *broken) {
	return func(s *broken) {
		s.apply = func(b *storage.Batch) (func() error, error) {
			b = cloneBatch(b)
			f(b)
			return s.Mem.Apply(b)
		}
	}
}

// onImage makes CrashClone change the remaining state.
func onImage(f func(m *Mem, i *image, unsynced int)) func(h *Harness, d *Disk) {
	return func(h *Harness, d *Disk) {
		clone := h.CrashClone
		h.CrashClone = func(t testing.TB, s storage.Store, dir string, unsynced int) string {
			to := clone(t, s, dir, unsynced)
			d.mu.Lock()
			defer d.mu.Unlock()
			f(memOf(s), d.dirs[to], unsynced)
			return to
		}
	}
}

func unconfirmed(s *broken, lost func(b *storage.Batch) bool) {
	s.apply = func(b *storage.Batch) (func() error, error) {
		lose := lost(b)
		wait, err := s.Mem.Apply(b)
		if err != nil || !lose {
			return wait, err
		}
		return func() error {
			s.locked(func() { s.nextWait++ })
			return nil
		}, nil
	}
}

var mutants = []mutant{
	// Apply and single reads.
	{name: "half a batch", caught: "AppliedBatchIsVisibleWholeToLaterReads", wrap: edit(func(b *storage.Batch) { b.Claims = b.Claims[:(len(b.Claims)+1)/2] })},
	{name: "state left out", caught: "AppliedBatchIsVisibleWholeToLaterReads", wrap: edit(func(b *storage.Batch) { b.State = nil })},
	{name: "last write in a batch lost", caught: "LaterWriteInABatchWins", wrap: edit(func(b *storage.Batch) { b.Claims = b.Claims[:max(0, len(b.Claims)-1)] })},
	{name: "earlier claim wins", caught: "LaterWriteInABatchWins", wrap: edit(func(b *storage.Batch) { slices.Reverse(b.Claims) })},
	{name: "earlier state wins", caught: "LaterWriteInABatchWins", wrap: edit(func(b *storage.Batch) { slices.Reverse(b.State) })},
	{name: "removals of claims ignored", caught: "NilValueRemoves", wrap: edit(func(b *storage.Batch) {
		b.Claims = slices.DeleteFunc(b.Claims, func(w storage.ClaimWrite) bool { return w.Record == nil })
	})},
	{name: "removed state kept empty", caught: "NilValueRemoves", wrap: edit(func(b *storage.Batch) {
		for i := range b.State {
			b.State[i].Value = append([]byte{}, b.State[i].Value...)
		}
	})},
	{name: "empty state removes", caught: "EmptyValueIsNotAbsent", wrap: edit(func(b *storage.Batch) {
		for i := range b.State {
			b.State[i].Value = append([]byte(nil), b.State[i].Value...)
		}
	})},
	{name: "empty record removes", caught: "EmptyValueIsNotAbsent", wrap: edit(func(b *storage.Batch) {
		for i := range b.Claims {
			b.Claims[i].Record = append([]byte(nil), b.Claims[i].Record...)
		}
	})},
	{name: "visible only when waited for", caught: "AppliedBatchIsVisibleWholeToLaterReads", wrap: func(s *broken) {
		s.apply = func(b *storage.Batch) (func() error, error) {
			b = cloneBatch(b)
			return func() error {
				wait, err := s.Mem.Apply(b)
				if err != nil {
					return err
				}
				return wait()
			}, nil
		}
	}},
	{name: "keys compared as prefixes", caught: "FullKeyCompare", wrap: func(s *broken) {
		s.claim = func(k []byte) ([]byte, bool, error) {
			s.disk.mu.Lock()
			defer s.disk.mu.Unlock()
			for _, full := range sortedKeys(s.history.view.claims, string(k)) {
				return s.history.view.claims[full], true, nil
			}
			return nil, false, nil
		}
	}},
	{name: "keys compared without case", caught: "FullKeyCompare", wrap: func(s *broken) {
		s.claim = func(k []byte) ([]byte, bool, error) {
			if v, found, err := s.Mem.Claim(k); found || err != nil {
				return v, found, err
			}
			b, id, err := storage.ParseKey(k)
			if err != nil || !utf8.Valid(id) {
				return nil, false, nil
			}
			return s.Mem.Claim(b.AppendKey(nil, bytes.ToUpper(id)))
		}
	}},
	{name: "scope and id joined without a separator", caught: "FullKeyCompare", wrap: func(s *broken) {
		s.claim = func(k []byte) ([]byte, bool, error) {
			naive := func(k []byte) string {
				b, id, err := storage.ParseKey(k)
				return fmt.Sprint(b.Week, b.Scope, string(id), err)
			}
			s.disk.mu.Lock()
			defer s.disk.mu.Unlock()
			for full, v := range s.history.view.claims {
				if naive([]byte(full)) == naive(k) {
					return v, true, nil
				}
			}
			return nil, false, nil
		}
	}},
	{name: "one name space for claims and state", caught: "ClaimsAndStateAreApart", wrap: func(s *broken) {
		s.state = func(k []byte) ([]byte, bool, error) {
			if v, found, err := s.Mem.State(k); found || err != nil {
				return v, found, err
			}
			return s.Mem.Claim(k)
		}
	}},
	{name: "long keys cut", caught: "LargeKeysAndValues", wrap: edit(func(b *storage.Batch) {
		for i, w := range b.Claims {
			b.Claims[i].Key = w.Key[:min(len(w.Key), 1000)]
		}
	})},
	{name: "long values cut", caught: "LargeKeysAndValues", wrap: edit(func(b *storage.Batch) {
		for i, w := range b.State {
			b.State[i].Value = w.Value[:min(len(w.Value), 1<<16)]
		}
	})},
	{name: "batch's slices kept", caught: "ApplyKeepsNoReferenceToTheBatch", wrap: func(s *broken) {
		s.apply = func(b *storage.Batch) (func() error, error) {
			wait, err := s.Mem.Apply(b)
			s.locked(func() {
				for _, w := range b.Claims {
					s.history.view.claims[string(w.Key)] = w.Record
				}
			})
			return wait, err
		}
	}},
	{name: "journal's slice kept until the sync", caught: "ApplyKeepsNoReferenceToTheBatch", wrap: func(s *broken) {
		s.apply = func(b *storage.Batch) (func() error, error) {
			wait, err := s.Mem.Apply(b)
			s.locked(func() { s.history.pending[len(s.history.pending)-1].Journal = b.Journal })
			return wait, err
		}
	}},
	{name: "reads return the store's own bytes", caught: "ReadsReturnCopies", wrap: func(s *broken) {
		s.claim = func(k []byte) ([]byte, bool, error) {
			s.disk.mu.Lock()
			defer s.disk.mu.Unlock()
			v, found := s.history.view.claims[string(k)]
			return v, found, nil
		}
	}},
	{name: "answers from a cache that is not updated", caught: "ConcurrentReadsWhileApplying", wrap: func(s *broken) {
		var mu sync.Mutex
		cached := map[string][]byte{}
		s.state = func(k []byte) ([]byte, bool, error) {
			mu.Lock()
			defer mu.Unlock()
			if v, found := cached[string(k)]; found {
				return v, true, nil
			}
			v, found, err := s.Mem.State(k)
			if found {
				cached[string(k)] = v
			}
			return v, found, err
		}
	}},

	// Scans.
	{name: "prefix's end computed without carry", caught: "StatePrefixScan", wrap: func(s *broken) {
		s.scanState = func(p storage.Span, f func(k, v []byte) error) error {
			return s.Mem.ScanState(p, func(k, v []byte) error {
				if n := len(p.Prefix); n > 0 && p.Prefix[n-1] == 0xff {
					return nil
				}
				return f(k, v)
			})
		}
	}},
	{name: "state scan begins at the prefix and does not end", caught: "StatePrefixScan", wrap: func(s *broken) {
		s.scanState = func(p storage.Span, f func(k, v []byte) error) error {
			return s.Mem.ScanState(storage.Span{From: p.Start()}, f)
		}
	}},
	{name: "state scan begins after its first key", caught: "StatePrefixScan", wrap: func(s *broken) {
		s.scanState = func(p storage.Span, f func(k, v []byte) error) error {
			return s.Mem.ScanState(p, func(k, v []byte) error {
				if bytes.Equal(k, p.From) {
					return nil
				}
				return f(k, v)
			})
		}
	}},
	{name: "state scan begins at its prefix", caught: "StatePrefixScan", wrap: func(s *broken) {
		s.scanState = func(p storage.Span, f func(k, v []byte) error) error {
			return s.Mem.ScanState(storage.Span{Prefix: p.Prefix}, f)
		}
	}},
	{name: "state scan sees later batches", caught: "StateScanSeesOneMoment", wrap: func(s *broken) {
		s.scanState = func(p storage.Span, f func(k, v []byte) error) error {
			for at := p; ; {
				var key, value []byte
				err := s.Mem.ScanState(at, func(k, v []byte) error { key, value = k, v; return errStop })
				if err == nil {
					return nil
				}
				if err := f(key, value); err != nil {
					return err
				}
				at.From = append(bytes.Clone(key), 0)
			}
		}
	}},
	{name: "scan of a span reads to the end", caught: "ScanOfASpan", wrap: func(s *broken) {
		s.scan = func(ctx context.Context, p storage.Span, started func(), f func(k, v []byte) error) error {
			return s.Mem.Scan(ctx, storage.Span{From: p.Start()}, started, f)
		}
	}},
	{name: "scan of a span begins with its bucket", caught: "ScanOfASpan", wrap: func(s *broken) {
		s.scan = func(ctx context.Context, p storage.Span, started func(), f func(k, v []byte) error) error {
			return s.Mem.Scan(ctx, storage.Span{Prefix: p.Prefix}, started, f)
		}
	}},
	{name: "state scan swallows the error", caught: "StatePrefixScan", wrap: func(s *broken) {
		s.scanState = func(p storage.Span, f func(k, v []byte) error) error { _ = s.Mem.ScanState(p, f); return nil }
	}},
	{name: "buckets in the order of their names", caught: "BucketsInKeyOrder", wrap: func(s *broken) {
		s.buckets = func(f func(storage.Bucket) error) error {
			var all []storage.Bucket
			_ = s.Mem.Buckets(func(b storage.Bucket) error { all = append(all, b); return nil })
			slices.SortFunc(all, func(a, b storage.Bucket) int { return strings.Compare(a.String(), b.String()) })
			for _, b := range all {
				if err := f(b); err != nil {
					return err
				}
			}
			return nil
		}
	}},
	{name: "emptied buckets listed", caught: "BucketsInKeyOrder", wrap: func(s *broken) {
		ever := map[storage.Bucket]int{}
		s.buckets = func(f func(storage.Bucket) error) error {
			_ = s.Mem.Buckets(func(b storage.Bucket) error { ever[b]++; return nil })
			for _, b := range sortedBuckets(ever) {
				if err := f(b); err != nil {
					return err
				}
			}
			return nil
		}
	}},
	{name: "buckets found by reading all claims", caught: "BucketsCostsNoScanOfTheClaims", wrap: func(s *broken) {
		s.buckets = func(f func(storage.Bucket) error) error {
			last := storage.Bucket{}
			return s.Mem.Scan(context.Background(), storage.Span{}, func() {}, func(k, _ []byte) error {
				if b := bucketOf(k); b != last {
					last = b
					return f(b)
				}
				return nil
			})
		}
	}},
	{name: "scan in no order", caught: "ScanInKeyOrder", wrap: func(s *broken) {
		s.scan = func(ctx context.Context, p storage.Span, started func(), f func(k, v []byte) error) error {
			started()
			s.disk.mu.Lock()
			claims := maps.Clone(s.history.view.claims)
			s.disk.mu.Unlock()
			for k, v := range claims {
				if err := f([]byte(k), v); err != nil {
					return err
				}
			}
			return nil
		}
	}},
	{name: "started not called", caught: "ScanInKeyOrder", wrap: func(s *broken) {
		s.scan = func(ctx context.Context, p storage.Span, _ func(), f func(k, v []byte) error) error {
			return s.Mem.Scan(ctx, p, func() {}, f)
		}
	}},
	{name: "started called late", caught: "ScanSeesOneMoment", wrap: func(s *broken) {
		s.scan = func(ctx context.Context, p storage.Span, started func(), f func(k, v []byte) error) error {
			defer started()
			return s.Mem.Scan(ctx, p, func() {}, f)
		}
	}},
	{name: "scan sees later batches", caught: "ScanSeesOneMoment", wrap: func(s *broken) {
		s.scan = func(ctx context.Context, p storage.Span, started func(), f func(k, v []byte) error) error {
			started()
			last := ""
			for {
				s.disk.mu.Lock()
				keys := sortedKeys(s.history.view.claims, "")
				i, found := slices.BinarySearch(keys, last)
				if found {
					i++
				}
				if i == len(keys) {
					s.disk.mu.Unlock()
					return nil
				}
				last = keys[i]
				v := s.history.view.claims[last]
				s.disk.mu.Unlock()
				if err := f([]byte(last), v); err != nil {
					return err
				}
			}
		}
	}},
	{name: "scan holds up Apply", caught: "ScanSeesOneMoment", wrap: func(s *broken) {
		var mu sync.Mutex
		s.scan = func(ctx context.Context, p storage.Span, started func(), f func(k, v []byte) error) error {
			mu.Lock()
			defer mu.Unlock()
			return s.Mem.Scan(ctx, p, started, f)
		}
		s.apply = func(b *storage.Batch) (func() error, error) {
			mu.Lock()
			defer mu.Unlock()
			return s.Mem.Apply(b)
		}
	}},
	{name: "scan without a context", caught: "ScanStopsWithContext", wrap: func(s *broken) {
		s.scan = func(_ context.Context, p storage.Span, started func(), f func(k, v []byte) error) error {
			return s.Mem.Scan(context.Background(), p, started, f)
		}
	}},

	// Close, open, crash.
	{name: "close loses a write", caught: "ReopenFindsEverythingWaitedFor", wrap: func(s *broken) {
		s.close = func() error {
			s.locked(func() {
				for _, k := range sortedKeys(s.history.durable.state, "") {
					delete(s.history.durable.state, k)
					break
				}
			})
			return s.Mem.Close()
		}
	}},
	{name: "identity made at each open", caught: "IdentitySurvivesReopen", wrap: func(s *broken) {
		id := storage.NewIdentity()
		s.identity = func() storage.Identity { return id }
	}},
	{name: "LastSeq moves", caught: "LastSeqIsWhatOpenFound", wrap: func(s *broken) {
		s.foundSeq = func() (n uint64) { s.locked(func() { n = s.history.view.lastSeq }); return n }
	}},
	{name: "wait confirms before the sync", caught: "WaitedForSurvivesACrash", wrap: func(s *broken) {
		unconfirmed(s, func(*storage.Batch) bool { return true })
	}},
	{name: "the sync that ends a group left out", caught: "WaitInOrder", wrap: func(s *broken) {
		unconfirmed(s, func(b *storage.Batch) bool { return b.Seq%10 == 0 })
	}},
	{name: "an empty batch syncs nothing", caught: "WaitForAnEmptyBatchIsDurable", wrap: func(s *broken) {
		unconfirmed(s, func(b *storage.Batch) bool { return len(b.Claims)+len(b.State)+len(b.Journal) == 0 })
	}},
	{name: "crash loses a batch in the middle", caught: "CrashKeepsAPrefixOfBatches", harness: onImage(func(m *Mem, i *image, unsynced int) {
		if unsynced == 100 && len(m.history.pending) > 2 {
			i.contents = m.history.durable.clone()
			for n, b := range m.history.pending {
				if n != 1 {
					i.contents.apply(b)
				}
			}
		}
	})},
	{name: "crash tears a batch", caught: "CrashKeepsAPrefixOfBatches", harness: onImage(func(m *Mem, i *image, unsynced int) {
		if unsynced == 0 && len(m.history.pending) > 0 {
			half := cloneBatch(m.history.pending[0])
			half.State = nil
			i.contents.apply(half)
		}
	})},
	{name: "wait returns before the last sync", caught: "CrashAtAnyMomentKeepsWhatWasConfirmed", wrap: func(s *broken) {
		unconfirmed(s, func(b *storage.Batch) bool { return b.Seq%10 != 0 })
	}},
	{name: "what open found is lost by the next crash", caught: "WhatOpenFoundIsDurable", harness: func(h *Harness, d *Disk) {
		older := map[string]history{}
		open, clone := h.Open, h.CrashClone
		h.CrashClone = func(t testing.TB, s storage.Store, dir string, unsynced int) string {
			to := clone(t, s, dir, unsynced)
			m := s.(*Mem)
			pending := slices.Clone(m.history.pending[:m.Unsynced()*unsynced/100])
			older[to] = history{durable: m.history.durable.clone(), pending: pending}
			return to
		}
		h.Open = func(t testing.TB, dir string) (storage.Store, error) {
			s, err := open(t, dir)
			if o, found := older[dir]; found && err == nil {
				s.(*Mem).history.durable, s.(*Mem).history.pending = o.durable, o.pending
			}
			return s, err
		}
	}},
	{name: "the end of an old log is read after a new one", caught: "LostBatchNumbersAreUsedAgain", harness: func(h *Harness, d *Disk) {
		lost := map[string][]*storage.Batch{}
		open, clone := h.Open, h.CrashClone
		h.CrashClone = func(t testing.TB, s storage.Store, dir string, unsynced int) string {
			to := clone(t, s, dir, unsynced)
			lost[to] = slices.Clone(memOf(s).history.pending)
			return to
		}
		h.Open = func(t testing.TB, dir string) (storage.Store, error) {
			m, err := open(t, dir)
			if err != nil {
				return nil, err
			}
			s := newBroken(m.(*Mem))
			s.close = func() error {
				s.locked(func() {
					for _, b := range lost[dir] {
						if b.Seq == s.history.durable.lastSeq+1 && b.Seq > s.lastSeq+1 {
							s.history.durable.apply(b)
						}
					}
				})
				return s.Mem.Close()
			}
			return s, nil
		}
	}},

	// Journal.
	{name: "empty journal entries skipped", caught: "JournalFromInOrderWithEmptyEntries", wrap: func(s *broken) {
		s.journal = func(from uint64, f func(uint64, []byte) error) error {
			return s.Mem.Journal(from, func(seq uint64, entry []byte) error {
				if len(entry) == 0 {
					return nil
				}
				return f(seq, entry)
			})
		}
	}},
	{name: "journal from the entry after", caught: "JournalFromInOrderWithEmptyEntries", wrap: func(s *broken) {
		s.journal = func(from uint64, f func(uint64, []byte) error) error { return s.Mem.Journal(from+1, f) }
	}},
	{name: "journal backwards", caught: "JournalFromInOrderWithEmptyEntries", wrap: func(s *broken) {
		s.journal = func(from uint64, f func(uint64, []byte) error) error {
			for seq := s.history.view.lastSeq; seq >= max(from, 1); seq-- {
				if err := f(seq, s.history.view.journal[seq]); err != nil {
					return err
				}
			}
			return nil
		}
	}},
	{name: "trim does nothing", caught: "TrimJournalForgetsWhatIsBelow", wrap: func(s *broken) { s.trim = func(uint64) error { return nil } }},
	{name: "trim only hides", caught: "TrimJournalForgetsWhatIsBelow", wrap: func(s *broken) {
		floor := uint64(0)
		s.trim = func(below uint64) error { floor = max(floor, below); return nil }
		s.journal = func(from uint64, f func(uint64, []byte) error) error { return s.Mem.Journal(max(from, floor), f) }
	}},
	{name: "trim takes one too many", caught: "TrimJournalForgetsWhatIsBelow", wrap: func(s *broken) {
		s.trim = func(below uint64) error { return s.Mem.TrimJournal(below + 1) }
	}},
	{name: "trim takes claims along", caught: "TrimJournalForgetsWhatIsBelow", wrap: func(s *broken) {
		s.trim = func(below uint64) error {
			s.locked(func() { s.history.view.drop(sortedBuckets(s.history.view.buckets)) })
			return s.Mem.TrimJournal(below)
		}
	}},
	{name: "a smaller trim brings entries back", caught: "TrimJournalIsNotTakenBackByASmallerNumber", wrap: func(s *broken) {
		floor := uint64(0)
		s.trim = func(below uint64) error { floor = below; return nil }
		s.journal = func(from uint64, f func(uint64, []byte) error) error { return s.Mem.Journal(max(from, floor), f) }
	}},
	{name: "LastSeq taken from the journal", caught: "TrimJournalKeepsLastSeq", wrap: func(s *broken) {
		n := uint64(0)
		for seq := range s.history.view.journal {
			n = max(n, seq)
		}
		s.foundSeq = func() uint64 { return n }
	}},

	// Drop.
	{name: "drop takes the next week", caught: "DropRemovesExactlyTheBuckets", wrap: func(s *broken) {
		s.drop = func(buckets []storage.Bucket) error {
			for _, b := range buckets {
				s.locked(func() { s.history.drop([]storage.Bucket{{Scope: b.Scope, Week: b.Week + 1}}) })
			}
			return s.Mem.Drop(buckets)
		}
	}},
	{name: "drop takes the week of all scopes", caught: "DropRemovesExactlyTheBuckets", wrap: func(s *broken) {
		s.drop = func(buckets []storage.Bucket) error {
			s.locked(func() {
				for _, b := range sortedBuckets(s.history.view.buckets) {
					if len(buckets) > 0 && b.Week == buckets[0].Week {
						s.history.drop([]storage.Bucket{b})
					}
				}
			})
			return s.Mem.Drop(buckets)
		}
	}},
	{name: "drop leaves the last of several buckets", caught: "DropRemovesExactlyTheBuckets", wrap: func(s *broken) {
		s.drop = func(buckets []storage.Bucket) error { return s.Mem.Drop(buckets[:(len(buckets)+1)/2]) }
	}},
	{name: "drop leaves the highest id", caught: "DropRemovesExactlyTheBuckets", wrap: func(s *broken) {
		s.drop = func(buckets []storage.Bucket) error {
			s.locked(func() {
				for _, b := range buckets {
					keys := sortedKeys(s.history.view.claims, string(b.AppendPrefix(nil)))
					for _, k := range keys[:max(0, len(keys)-1)] {
						gone := storage.ClaimWrite{Key: []byte(k)}
						s.history.view.setClaim(gone)
						s.history.durable.setClaim(gone)
					}
				}
			})
			return nil
		}
	}},
	{name: "drop takes state along", caught: "DropRemovesExactlyTheBuckets", wrap: func(s *broken) {
		s.drop = func(buckets []storage.Bucket) error {
			s.locked(func() {
				for _, b := range buckets {
					for _, k := range sortedKeys(s.history.view.state, string(b.AppendPrefix(nil))) {
						delete(s.history.view.state, k)
					}
				}
			})
			return s.Mem.Drop(buckets)
		}
	}},
	{name: "drop takes scopes that begin alike", caught: "DropOfScopesThatBeginAlike", wrap: func(s *broken) {
		s.drop = func(buckets []storage.Bucket) error {
			s.locked(func() {
				for _, b := range buckets {
					for _, other := range sortedBuckets(s.history.view.buckets) {
						if strings.HasPrefix(other.Scope, b.Scope) && other.Week == b.Week {
							s.history.drop([]storage.Bucket{other})
						}
					}
				}
			})
			return s.Mem.Drop(buckets)
		}
	}},
	{name: "drop is not synced", caught: "DropIsDurable", wrap: func(s *broken) {
		s.drop = func(buckets []storage.Bucket) error { s.locked(func() { s.history.view.drop(buckets) }); return nil }
	}},
	{name: "replay brings dropped claims back", caught: "DropIsNotUndoneByAnUnsyncedBatch", wrap: func(s *broken) {
		s.drop = func(buckets []storage.Bucket) error {
			s.locked(func() { s.history.view.drop(buckets); s.history.durable.drop(buckets) })
			return nil
		}
	}},
	{name: "second drop fails", caught: "DropTwiceIsHarmless", wrap: func(s *broken) {
		s.drop = func(buckets []storage.Bucket) error {
			for _, b := range buckets {
				if s.dropped[b] {
					return errors.New("it is gone already")
				}
			}
			return s.Mem.Drop(buckets)
		}
	}},
	{name: "drop loses what is applied beside it", caught: "ApplyDuringDrop", wrap: func(s *broken) {
		s.drop = func(buckets []storage.Bucket) error {
			var old map[string][]byte
			s.locked(func() { old = maps.Clone(s.history.view.claims) })
			s.awaitBatch()
			s.locked(func() { s.history.view.claims = old })
			return s.Mem.Drop(buckets)
		}
	}},
	{name: "drop writes its neighbour anew", caught: "CrashWithinADropLeavesEachClaimOrNot", wrap: func(s *broken) {
		s.drop = func(buckets []storage.Bucket) error {
			next := bucket(buckets[0].Scope, buckets[0].Week+1)
			var durable *contents
			clones := 0
			s.locked(func() {
				durable = s.history.durable.clone()
				s.history.durable.drop([]storage.Bucket{next})
				clones = len(s.disk.dirs)
			})
			s.await(func() bool { return len(s.disk.dirs) > clones })
			s.locked(func() { s.history.durable = durable })
			return s.Mem.Drop(buckets)
		}
	}},
	{name: "trim takes the place of a drop", caught: "EverythingBesideMaintenance", wrap: func(s *broken) {
		dropping := false
		s.drop = func(buckets []storage.Bucket) error {
			s.locked(func() { dropping = true })
			s.await(func() bool { return !dropping })
			var still bool
			s.locked(func() { still, dropping = dropping, false })
			if !still {
				return nil
			}
			return s.Mem.Drop(buckets)
		}
		s.trim = func(below uint64) error {
			s.await(func() bool { return dropping })
			s.locked(func() { dropping = false })
			return s.Mem.TrimJournal(below)
		}
	}},
	{name: "verify beside a drop finds less than there was", caught: "EverythingBesideMaintenance", wrap: func(s *broken) {
		verifying := false
		s.verify = func(_ context.Context, report func(string)) error {
			var before, after int
			s.locked(func() { verifying, before = true, len(s.history.view.claims) })
			s.await(func() bool { return len(s.history.view.claims) < before })
			s.locked(func() { verifying, after = false, len(s.history.view.claims) })
			if after < before {
				report("claims are missing")
			}
			return nil
		}
		s.drop = func(buckets []storage.Bucket) error {
			s.await(func() bool { return verifying })
			return s.Mem.Drop(buckets)
		}
	}},
	{name: "drop delays Apply forever", caught: "ApplyDuringDrop", wrap: func(s *broken) {
		s.drop = func(buckets []storage.Bucket) error { select {} }
	}},
	{name: "reclaim waits for its context", caught: "ReclaimReturns", wrap: func(s *broken) {
		s.reclaim = func(ctx context.Context, _ []storage.Bucket) error { <-ctx.Done(); return ctx.Err() }
	}},
	{name: "reclaim takes claims along", caught: "ReclaimReturns", wrap: func(s *broken) {
		s.reclaim = func(ctx context.Context, _ []storage.Bucket) error {
			s.locked(func() { s.history.view.drop([]storage.Bucket{bucket("a", week+1)}) })
			return nil
		}
	}},
	{name: "reclaim ignores its context", caught: "ReclaimStopsWithContext", wrap: func(s *broken) {
		s.reclaim = func(ctx context.Context, b []storage.Bucket) error {
			if ctx.Err() != nil {
				select {}
			}
			return s.Mem.Reclaim(ctx, b)
		}
	}},
	{name: "reclaim of states waits for its context", caught: "ReclaimStateReturns", wrap: func(s *broken) {
		s.reclaimState = func(ctx context.Context, _ storage.Span) error { <-ctx.Done(); return ctx.Err() }
	}},
	{name: "reclaim of states takes one along", caught: "ReclaimStateReturns", wrap: func(s *broken) {
		s.reclaimState = func(context.Context, storage.Span) error {
			s.locked(func() { delete(s.history.view.state, "b/1") })
			return nil
		}
	}},
	{name: "reclaim of states ignores its context", caught: "ReclaimStateStopsWithContext", wrap: func(s *broken) {
		s.reclaimState = func(ctx context.Context, span storage.Span) error {
			if ctx.Err() != nil {
				select {}
			}
			return s.Mem.ReclaimState(ctx, span)
		}
	}},
	{name: "nothing counted", caught: "UsageFollowsWhatIsWritten", wrap: func(s *broken) {
		s.usage = func() (storage.Usage, error) { return storage.Usage{}, nil }
	}},
	{name: "sidecars not counted", caught: "UsageFollowsWhatIsWritten", wrap: func(s *broken) {
		s.usage = func() (storage.Usage, error) {
			u, err := s.Mem.Usage()
			for _, b := range s.image.sidecars {
				u.DiskBytes -= uint64(len(b))
			}
			return u, err
		}
	}},
	{name: "every bucket is as large as all", caught: "BucketBytesTellsFullFromEmpty", wrap: func(s *broken) {
		s.bucketBytes = func(storage.Bucket) (uint64, error) { u, err := s.Mem.Usage(); return u.DiskBytes, err }
	}},
	{name: "no bucket has a size", caught: "BucketBytesTellsFullFromEmpty", wrap: func(s *broken) {
		s.bucketBytes = func(storage.Bucket) (uint64, error) { return 0, nil }
	}},

	// Sidecars.
	{name: "sidecar appended to", caught: "SidecarReplacedWhole", wrap: func(s *broken) {
		s.writeSidecar = func(name string, write func(io.Writer) error) error {
			old, _ := ReadSidecar(s.Mem, name)
			return s.Mem.WriteSidecar(name, func(w io.Writer) error { return errors.Join(writerOf(old)(w), write(w)) })
		}
	}},
	{name: "sidecar overwritten without truncation", caught: "SidecarReplacedWhole", wrap: func(s *broken) {
		s.writeSidecar = func(name string, write func(io.Writer) error) error {
			old, _ := ReadSidecar(s.Mem, name)
			return s.Mem.WriteSidecar(name, func(w io.Writer) error {
				var b bytes.Buffer
				err := write(&b)
				if b.Len() < len(old) {
					b.Write(old[b.Len():])
				}
				_, err2 := w.Write(b.Bytes())
				return errors.Join(err, err2)
			})
		}
	}},
	{name: "sidecar's writer changes the caller's bytes", caught: "SidecarReplacedWhole", wrap: func(s *broken) {
		s.writeSidecar = func(name string, write func(io.Writer) error) error {
			return s.Mem.WriteSidecar(name, func(w io.Writer) error {
				return write(writerFunc(func(b []byte) { _, _ = w.Write(b); scribble(b) }))
			})
		}
	}},
	{name: "sidecar's directory entry not synced", caught: "SidecarSurvivesACrash", harness: onImage(func(_ *Mem, i *image, unsynced int) {
		if unsynced == 0 {
			clear(i.sidecars)
		}
	})},
	{name: "sidecar written in place", caught: "SidecarHalfWrittenAtACrashIsTheOldOne", wrap: func(s *broken) {
		s.writeSidecar = func(name string, write func(io.Writer) error) error {
			return s.Mem.WriteSidecar(name, func(w io.Writer) error { return write(io.MultiWriter(w, inPlace{s, name})) })
		}
	}},
	{name: "failed sidecar kept", caught: "SidecarThatFailsLeavesTheOldOne", wrap: func(s *broken) {
		s.writeSidecar = func(name string, write func(io.Writer) error) (err error) {
			return errors.Join(s.Mem.WriteSidecar(name, func(w io.Writer) error { err = write(w); return nil }), err)
		}
	}},
	{name: "failed write function not told", caught: "SidecarThatFailsLeavesTheOldOne", wrap: func(s *broken) {
		s.writeSidecar = func(name string, write func(io.Writer) error) error { _ = s.Mem.WriteSidecar(name, write); return nil }
	}},
	{name: "failed write function poisons", caught: "SidecarThatFailsLeavesTheOldOne", wrap: func(s *broken) {
		s.writeSidecar = func(name string, write func(io.Writer) error) error {
			err := s.Mem.WriteSidecar(name, write)
			if err != nil {
				s.Fail(err)
			}
			return err
		}
	}},
	{name: "no room for a sidecar poisons", caught: "SidecarWithoutRoomLeavesTheOldOneAndTheStore", wrap: func(s *broken) {
		s.writeSidecar = func(name string, write func(io.Writer) error) error {
			err := s.Mem.WriteSidecar(name, write)
			if err != nil {
				s.Fail(err)
			}
			return err
		}
	}},
	{name: "one temporary file for all writers", caught: "SidecarsWrittenAtOnceStayWhole", wrap: func(s *broken) {
		var mu sync.Mutex
		temporary := map[string][]byte{}
		s.writeSidecar = func(name string, write func(io.Writer) error) error {
			mu.Lock()
			temporary[name] = nil
			mu.Unlock()
			err := write(writerFunc(func(b []byte) {
				time.Sleep(100 * time.Microsecond)
				mu.Lock()
				temporary[name] = append(temporary[name], b...)
				mu.Unlock()
			}))
			mu.Lock()
			defer mu.Unlock()
			return errors.Join(err, s.Mem.WriteSidecar(name, writerOf(temporary[name])))
		}
	}},
	{name: "a sidecar's name is that of a file of the store", caught: "SidecarNamesDoNotTouchTheStore", wrap: func(s *broken) {
		s.writeSidecar = func(name string, write func(io.Writer) error) error {
			if name == "data" {
				s.locked(func() { clear(s.history.durable.state) })
			}
			return s.Mem.WriteSidecar(name, write)
		}
	}},
	{name: "absent sidecar is empty", caught: "ReadSidecarAbsentIsErrNotExist", wrap: func(s *broken) {
		s.readSidecar = func(name string, read func(io.Reader, int64) error) error {
			err := s.Mem.ReadSidecar(name, read)
			if errors.Is(err, fs.ErrNotExist) {
				return read(strings.NewReader(""), 0)
			}
			return err
		}
	}},
	{name: "error of a sidecar's reader is ignored", caught: "SidecarReplacedWhole", wrap: func(s *broken) {
		s.readSidecar = func(name string, read func(io.Reader, int64) error) error {
			return s.Mem.ReadSidecar(name, func(r io.Reader, size int64) error { _ = read(r, size); return nil })
		}
	}},
	{name: "sidecar has another size than announced", caught: "SidecarReplacedWhole", wrap: func(s *broken) {
		s.readSidecar = func(name string, read func(io.Reader, int64) error) error {
			return s.Mem.ReadSidecar(name, func(r io.Reader, size int64) error { return read(r, size+1) })
		}
	}},

	// Backups, verification.
	{name: "backup has the same incarnation", caught: "BackupOpensWithHigherIncarnationAndSameUUID", wrap: onBackup(func(s *broken, i *image) { i.identity.Incarnation = s.Identity().Incarnation })},
	{name: "backup has another UUID", caught: "BackupOpensWithHigherIncarnationAndSameUUID", wrap: onBackup(func(s *broken, i *image) { i.identity.UUID[0]++ })},
	{name: "backup has another seed", caught: "BackupOpensWithHigherIncarnationAndSameUUID", wrap: onBackup(func(s *broken, i *image) { i.identity.Seed++ })},
	{name: "backup without what is not synced", caught: "BackupOpensWithHigherIncarnationAndSameUUID", wrap: onBackup(func(s *broken, i *image) { i.contents = s.history.durable.clone() })},
	{name: "backup shares what changes", caught: "BackupAndOriginalGoTheirOwnWays", wrap: onBackup(func(s *broken, i *image) { i.contents = s.history.view })},
	{name: "backup of several moments", caught: "BackupDuringApply", wrap: func(s *broken) {
		s.backup = func(ctx context.Context, dir string) error {
			err := s.Mem.Backup(ctx, dir)
			s.awaitBatch()
			s.locked(func() {
				s.disk.dirs[dir].contents.state = maps.Clone(s.history.view.state)
				s.disk.dirs[dir].contents.lastSeq = s.history.view.lastSeq
			})
			return err
		}
	}},
	{name: "backup replaces what is there", caught: "BackupRefusesADirectoryThatExists", wrap: func(s *broken) {
		s.backup = func(ctx context.Context, dir string) error {
			s.locked(func() { delete(s.disk.dirs, dir) })
			return s.Mem.Backup(ctx, dir)
		}
	}},
	{name: "backup ignores its context", caught: "BackupStopsWithContext", wrap: func(s *broken) {
		s.backup = func(_ context.Context, dir string) error { return s.Mem.Backup(context.Background(), dir) }
	}},
	{name: "verify takes a drop for damage", caught: "VerifyOfAHealthyStoreReportsNothing", wrap: func(s *broken) {
		s.verify = func(_ context.Context, report func(string)) error {
			if len(s.dropped) > 0 {
				report("claims are missing")
			}
			return nil
		}
	}},

	// Open, close, failure.
	{name: "no lock", caught: "SecondOpenIsErrLocked", harness: func(h *Harness, d *Disk) {
		open := h.Open
		h.Open = func(t testing.TB, dir string) (storage.Store, error) {
			if i := d.dirs[dir]; i != nil {
				i.open = false
			}
			return open(t, dir)
		}
	}},
	{name: "locked under another name", caught: "SecondOpenIsErrLocked", harness: func(h *Harness, d *Disk) {
		open := h.Open
		h.Open = func(t testing.TB, dir string) (storage.Store, error) {
			s, err := open(t, dir)
			if err != nil {
				err = errors.New("resource temporarily unavailable")
			}
			return s, err
		}
	}},
	{name: "several engines", caught: "OneEngineUsesAStore", wrap: func(s *broken) {
		s.acquire = func() error { return nil }
	}},
	{name: "acquired after Close", caught: "OneEngineUsesAStore", wrap: func(s *broken) {
		s.close = func() error { err := s.Mem.Close(); s.Release(); return err }
	}},
	{name: "a second Close fails", caught: "SecondCloseIsHarmless", wrap: func(s *broken) {
		closed := false
		s.close = func() error {
			if closed {
				return errors.New("closed already")
			}
			closed = true
			return s.Mem.Close()
		}
	}},
	{name: "a goroutine outlives the store", caught: "CloseLeavesNoGoroutine", wrap: func(s *broken) { go func() { select {} }() }},
	{name: "lock kept after a failure", caught: "PoisonedStoreCloses", wrap: func(s *broken) {
		s.close = func() error {
			if s.failed != nil {
				return s.failed
			}
			return s.Mem.Close()
		}
	}},
	{name: "seed is constant", caught: "NewStoresAreDistinct", wrap: func(s *broken) {
		s.identity = func() storage.Identity { id := s.image.identity; id.Seed = 1; return id }
	}},
	{name: "newer format opened", caught: "NewerFormatIsRefusedUntouched", harness: func(h *Harness, d *Disk) {
		open := h.Open
		h.Open = func(t testing.TB, dir string) (storage.Store, error) {
			if i := d.dirs[dir]; i != nil {
				i.newer = false
			}
			return open(t, dir)
		}
	}},
	{name: "newer format refused but touched", caught: "NewerFormatIsRefusedUntouched", harness: func(h *Harness, d *Disk) {
		open := h.Open
		h.Open = func(t testing.TB, dir string) (storage.Store, error) {
			s, err := open(t, dir)
			if errors.Is(err, storage.ErrNewerFormat) {
				d.dirs[dir].sidecars["lock"] = []byte("x")
			}
			return s, err
		}
	}},
	{name: "wait says nil for a lost write", caught: "FailedWriteConfirmsNothing", wrap: func(s *broken) {
		s.apply = func(b *storage.Batch) (func() error, error) {
			wait, err := s.Mem.Apply(b)
			return func() error { _ = wait(); return nil }, err
		}
	}},
	{name: "waits succeed again after a failure", caught: "FailedWriteConfirmsNothing", wrap: func(s *broken) {
		failures := 0
		s.apply = func(b *storage.Batch) (func() error, error) {
			wait, err := s.Mem.Apply(b)
			return func() error {
				err := wait()
				if err != nil {
					if failures++; failures > 1 {
						return nil
					}
				}
				return err
			}, err
		}
	}},
	{name: "the cause is not wrapped", caught: "FailedWriteConfirmsNothing", wrap: func(s *broken) {
		s.apply = func(b *storage.Batch) (func() error, error) {
			wait, err := s.Mem.Apply(b)
			return func() error { return unwrapped(wait()) }, unwrapped(err)
		}
	}},
	{name: "writes after a failure", caught: "PoisonedStoreRefusesToWrite", wrap: func(s *broken) {
		s.drop = func(b []storage.Bucket) error { _ = s.Mem.Drop(b); return nil }
	}},
	{name: "sidecars after a failure", caught: "PoisonedStoreRefusesToWrite", wrap: func(s *broken) {
		s.writeSidecar = func(n string, w func(io.Writer) error) error { _ = s.Mem.WriteSidecar(n, w); return nil }
	}},
	{name: "close hangs after a failure", caught: "PoisonedStoreCloses", wrap: func(s *broken) {
		s.close = func() error {
			if s.failed != nil {
				select {}
			}
			return s.Mem.Close()
		}
	}},

	// Faults that only a longer history shows.
	{name: "every 20th batch loses a removal", caught: "RandomRunAgreesWithAMap", wrap: edit(func(b *storage.Batch) {
		if b.Seq%20 == 0 {
			b.Claims = slices.DeleteFunc(b.Claims, func(w storage.ClaimWrite) bool { return w.Record == nil })
		}
	})},
	{name: "dropped after a trim comes back at the next open", caught: "RandomRunAgreesWithAMap", wrap: func(s *broken) {
		s.drop = func(buckets []storage.Bucket) error {
			if s.trimmed == 0 {
				return s.Mem.Drop(buckets)
			}
			s.locked(func() { s.history.view.drop(buckets) })
			return nil
		}
	}},
}

func onBackup(f func(s *broken, i *image)) func(s *broken) {
	return func(s *broken) {
		s.backup = func(ctx context.Context, dir string) error {
			err := s.Mem.Backup(ctx, dir)
			if err == nil {
				s.locked(func() { f(s, s.disk.dirs[dir]) })
			}
			return err
		}
	}
}

func unwrapped(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.Error())
}

type writerFunc func(b []byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

type inPlace struct {
	s    *broken
	name string
}

func (p inPlace) Write(b []byte) (int, error) {
	p.s.locked(func() { p.s.image.sidecars[p.name] = bytes.Clone(b) })
	return len(b), nil
}

const mutantVariable = "STORETEST_MUTANT"

// TestSuiteOnMutant runs in a process of its own, started by TestEachMutantIsCaught.
func TestSuiteOnMutant(t *testing.T) {
	name := os.Getenv(mutantVariable)
	if name == "" {
		t.Skip("run by TestEachMutantIsCaught")
	}
	i := slices.IndexFunc(mutants, func(m mutant) bool { return m.name == name })
	disk := NewDisk()
	h := disk.Harness()
	h.patience, h.budget = 5*time.Second, time.Hour
	if m := mutants[i]; m.harness != nil {
		m.harness(&h, disk)
	} else {
		open := h.Open
		h.Open = func(t testing.TB, dir string) (storage.Store, error) {
			s, err := open(t, dir)
			if err != nil {
				return nil, err
			}
			b := newBroken(s.(*Mem))
			m.wrap(b)
			return b, nil
		}
	}
	Run(t, h)
}

func TestEachMutantIsCaught(t *testing.T) {
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.v", "-test.short", "-test.run=^TestSuiteOnMutant$/^"+m.caught+"$",
				"-rapid.seed=1", "-rapid.nofailfile", "-rapid.shrinktime=1s")
			cmd.Env = append(os.Environ(), mutantVariable+"="+m.name)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !bytes.Contains(out, []byte("--- FAIL: TestSuiteOnMutant/"+m.caught+" ")) || bytes.Contains(out, []byte("panic:")) {
				t.Errorf("%s has not caught it properly: %v\n%s", m.caught, err, out)
			}
		})
	}
}

func TestEachCheckCatchesAMutant(t *testing.T) {
	for _, c := range checks {
		if !slices.ContainsFunc(mutants, func(m mutant) bool { return m.caught == c.name }) {
			t.Errorf("no mutant shows that %s can fail", c.name)
		}
	}
}
