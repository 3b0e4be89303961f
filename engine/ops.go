package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Lookup returns the claim on an event, if there is one that is durable and in a kept week.
func (e *Engine) Lookup(ctx context.Context, scope string, id []byte, at time.Time) (rec Record, found bool, err error) {
	if err := ctx.Err(); err != nil {
		return Record{}, false, err
	}
	key, week, err := e.lookupKey(scope, id, at)
	if err != nil {
		return Record{}, false, err
	}
	if err := e.enter(); err != nil {
		return Record{}, false, err
	}
	defer e.leave()
	if week < e.oldestOf(scope) {
		return Record{}, false, nil
	}
	rec, found, err = e.readKept(key, week)
	if err == nil {
		err = e.settle()
	}
	return rec, found && err == nil, err
}

// Forget removes the claim on one event, durably on return, so that its next delivery is Claimed.
// It reports whether there was one. A claim that an open transaction holds is ErrConflict.
func (e *Engine) Forget(ctx context.Context, scope string, id []byte, at time.Time) (found bool, err error) {
	key, week, err := e.lookupKey(scope, id, at)
	if err != nil {
		return false, err
	}
	hash := e.hash(key)
	err = e.control(ctx, func(g *group) error {
		if e.tx.reserved(key) {
			return ErrConflict
		}
		if week < e.decidedOldest(scope) {
			return nil
		}
		var rec Record
		if rec, found, err = e.read(key); err != nil || !found {
			return err
		}
		ref := bucketRef{week: week}
		if ref.scope, g.batch.State, err = e.names.ref(scope, asScope, week, g.batch.State); err != nil {
			return err
		}
		g.batch.Claims = append(g.batch.Claims, storage.ClaimWrite{Key: key})
		g.journal.add(ref, journalRemoved, hash)
		g.after = append(g.after, func() { e.recent.forget(hash) })
		e.screen.remove(ref, hash)
		e.put.add(key, hash, Record{})
		if rec.State != Done {
			e.tx.changed(key, e.seq+1)
		}
		return nil
	})
	return found && err == nil, err
}

// lookupKey makes the key of a claim from what an operator knows of it.
func (e *Engine) lookupKey(scope string, id []byte, at time.Time) ([]byte, weekbucket.Week, error) {
	ev := Event{Scope: scope, ID: id, Time: at, Origin: Origin{Topic: "-"}}
	week, err := ev.check(LimitIDBytes, at)
	if err != nil {
		return nil, 0, err
	}
	return storage.Bucket{Scope: scope, Week: week}.AppendKey(nil, id), week, nil
}

// Offset returns the next offset of a partition, as it is durable in the store.
func (e *Engine) Offset(ctx context.Context, p Position) (o Offset, found bool, err error) {
	if err := errors.Join(ctx.Err(), p.check()); err != nil {
		return Offset{}, false, err
	}
	if err := e.enter(); err != nil {
		return Offset{}, false, err
	}
	defer e.leave()
	value, found, err := e.store.State(p.stateKey())
	if err == nil && found {
		o, err = parseOffset(value)
	}
	if err != nil {
		return Offset{}, false, e.stop(err)
	}
	if err := e.settle(); err != nil {
		return Offset{}, false, err
	}
	return o, found, nil
}

// A ScopeInfo is what the store holds of one scope in one week. Bytes are an estimate of the space
// on disk.
type ScopeInfo struct {
	Scope  string
	Claims uint64
	Bytes  uint64
}

// A WeekInfo is what the store holds of one week, scopes in order.
type WeekInfo struct {
	Week   weekbucket.Week
	Claims uint64
	Bytes  uint64
	Scopes []ScopeInfo
}

// Weeks lists the kept weeks that hold claims, oldest first. While the counts are being rebuilt it
// is ErrRebuilding.
func (e *Engine) Weeks(ctx context.Context) ([]WeekInfo, error) {
	counts, err := e.currentCounts(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.enter(); err != nil {
		return nil, err
	}
	defer e.leave()
	weeks := make(map[weekbucket.Week]*WeekInfo)
	for b, c := range counts {
		bytes, err := e.store.BucketBytes(b)
		if err != nil {
			return nil, e.stop(err)
		}
		w := weeks[b.Week]
		if w == nil {
			w = &WeekInfo{Week: b.Week}
			weeks[b.Week] = w
		}
		w.Claims += c.claims
		w.Bytes += bytes
		w.Scopes = append(w.Scopes, ScopeInfo{b.Scope, c.claims, bytes})
	}
	list := make([]WeekInfo, 0, len(weeks))
	for _, w := range weeks {
		slices.SortFunc(w.Scopes, func(a, b ScopeInfo) int { return cmp.Compare(a.Scope, b.Scope) })
		list = append(list, *w)
	}
	slices.SortFunc(list, func(a, b WeekInfo) int { return cmp.Compare(a.Week, b.Week) })
	return list, nil
}

// currentCounts names the buckets in the committer, which alone frees names.
func (e *Engine) currentCounts(ctx context.Context) (map[storage.Bucket]count, error) {
	counts := make(map[storage.Bucket]count)
	err := e.control(ctx, func(*group) error {
		if !e.screen.trusted.Load() {
			return ErrRebuilding
		}
		for ref, c := range e.screen.copyCounts() {
			name, err := e.names.name(ref.scope)
			if err != nil {
				return err
			}
			counts[storage.Bucket{Scope: name, Week: ref.week}] = c
		}
		return nil
	})
	return counts, err
}

// Backup writes a consistent copy of the store to dir, which must not exist, while claims continue.
// It holds everything that was acknowledged before the call. Its identity has the same UUID and a
// higher incarnation; opened, it rebuilds its filters by a scan.
func (e *Engine) Backup(ctx context.Context, dir string) error {
	return e.untilClose(ctx, func(ctx context.Context) error { return e.store.Backup(ctx, dir) })
}

// untilClose runs a long call of the store, which Close cuts off.
func (e *Engine) untilClose(ctx context.Context, call func(ctx context.Context) error) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.work, cancel)()
	err := call(ctx)
	if err != nil && e.work.Err() != nil {
		return ErrClosed
	}
	return err
}

// A scanned claim, with its key taken apart.
type scanned struct {
	ref  bucketRef
	key  []byte
	hash uint64
	rec  Record
}

// beginScan scans the claims as they are after the last batch decided so far. begun runs while the
// committer is stopped at that moment; fn is then called for each claim of a kept week, while
// claims continue.
func (e *Engine) beginScan(ctx context.Context, begun func(), fn func(scanned) error) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.work, cancel)() // Close does not wait for a scan
	started, done, running := make(chan struct{}), make(chan error, 1), false
	scan := &command{ticket: newTicket()}
	scan.run = func(*group) error {
		running = true
		go func() {
			done <- e.store.Scan(ctx, storage.Span{}, func() {
				begun() // the committer waits, and nothing was scanned yet
				close(started)
			}, func(key, record []byte) error {
				b, _, err := storage.ParseKey(key)
				if err != nil {
					return err
				}
				c, err := e.scanned(b, key, record)
				if b.Week < e.oldestOf(b.Scope) {
					return nil // its names may be free already
				}
				if err != nil {
					return err
				}
				return fn(c)
			})
		}()
		select {
		case <-started:
			return nil
		case err := <-done:
			running = false
			return err
		}
	}
	err := e.submit(ctx, scan)
	if running {
		if err != nil {
			cancel()
		}
		err = errors.Join(err, <-done)
	}
	return err
}

func (e *Engine) scanned(b storage.Bucket, key, record []byte) (scanned, error) {
	rec, err := e.parse(record)
	if err != nil {
		return scanned{}, err
	}
	scope, ok := e.names.number(b.Scope)
	if !ok {
		return scanned{}, fmt.Errorf("%w: scope %q is not in the table of names", storage.ErrDamaged, b.Scope)
	}
	return scanned{bucketRef{scope, b.Week}, key, e.hash(key), rec}, nil
}

// A VerifyReport is what Verify found. The store is whole if there are no problems.
type VerifyReport struct {
	Claims   uint64
	Problems []string // at most MaxProblems; more are counted
	Total    int
}

// MaxProblems is the number of problems that a VerifyReport spells out.
const MaxProblems = 100

func (r *VerifyReport) add(format string, args ...any) {
	r.Total++
	if len(r.Problems) < MaxProblems {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// Verify reads the whole store while claims continue, and checks every claim and record, the
// filters, the counts and hashes of each bucket, and the store's own checksums. It takes as long as
// reading everything takes.
func (e *Engine) Verify(ctx context.Context) (VerifyReport, error) {
	var report VerifyReport
	want, got := map[bucketRef]count{}, map[bucketRef]count{}
	// What is checked are the claims as they are when the scan begins, against counts, filters and
	// oldest week of that moment: a drop may continue meanwhile.
	var filters map[weekbucket.Week]*bloom.Filter
	var oldest func(ref bucketRef) weekbucket.Week
	scopes := map[uint64]string{} // a drop may free their names
	trusted := false
	err := e.beginScan(ctx, func() {
		oldest = e.oldestByNumber()
		if trusted = e.screen.trusted.Load(); trusted {
			want, filters = e.screen.copyCounts(), *e.screen.filters.Load()
		}
		for ref := range want {
			scopes[ref.scope], _ = e.names.name(ref.scope)
		}
	}, func(c scanned) error {
		if c.ref.week < oldest(c.ref) {
			return nil
		}
		n := got[c.ref]
		got[c.ref] = count{n.claims + 1, n.xor ^ c.hash}
		report.Claims++
		if f := filters[c.ref.week]; trusted && (f == nil || !f.MayContain(c.hash)) {
			report.add("the filter of %s denies the claim with key %x", c.ref.week, c.key)
		}
		return nil
	})
	switch {
	case errors.Is(err, storage.ErrDamaged):
		report.add("%v", err)
	case err != nil:
		return report, err
	case trusted:
		e.compareCounts(&report, scopes, want, got)
	}
	return report, e.untilClose(ctx, func(ctx context.Context) error {
		return e.store.Verify(ctx, func(problem string) { report.add("%s", problem) })
	})
}

func (e *Engine) compareCounts(report *VerifyReport, scopes map[uint64]string, want, got map[bucketRef]count) {
	for ref := range got {
		if _, ok := want[ref]; !ok {
			want[ref] = count{}
		}
	}
	for ref, w := range want {
		name, known := scopes[ref.scope]
		if !known {
			name, _ = e.names.name(ref.scope)
		}
		if g := got[ref]; g != w && ref.week >= e.oldestOf(name) {
			report.add("bucket %s: %d claims with hash %016x were written, %d with %016x are there",
				storage.Bucket{Scope: name, Week: ref.week}, w.claims, w.xor, g.claims, g.xor)
		}
	}
}

// Stats are figures since the engine was opened, and of what it occupies now.
type Stats struct {
	// Verdicts counts the verdicts that hold: those of own-commit claims, and those of transactions
	// that committed, without what these rolled back to a savepoint.
	Verdicts map[Verdict]uint64
	// Attempts counts every verdict given, also those that were rolled back. Those of a transaction
	// count when it ends.
	Attempts map[Verdict]uint64
	// TakenBack counts claims that were taken back by Tx.Unclaim. Verdicts counts them, too: as
	// Claimed, and once more when they are claimed again.
	TakenBack uint64

	// FilterNegatives are events that the filter alone found new; FilterFalsePositives those that
	// the filter held for possible and the store had not.
	FilterNegatives, FilterFalsePositives uint64
	FilterBytes                           uint64
	FilterSource                          FilterSource
	// FilterRebuilding says that every event asks the store, because the filters are not back yet.
	FilterRebuilding bool

	CacheHits, StoreReads uint64

	// SnapshotFailures counts snapshots of the filters that could not be written, for example
	// because the disk is full. They are tried again, at most once a minute and by Close; until one
	// succeeds the store keeps more of its journal and the next open takes longer. LastSnapshotErr
	// is why the last one failed, nil if it was written.
	SnapshotFailures uint64
	LastSnapshotErr  error

	OpenTransactions int
	Holds            int
	Names            int // distinct scopes and topics that kept weeks refer to, of MaxNames
	Oldest           weekbucket.Week
	Store            storage.Usage
}

// Stats returns the figures. It asks the store for its sizes and takes no part in judging events.
// With an error, after a failure or Close too, everything but Store is there.
func (e *Engine) Stats() (Stats, error) {
	s := e.stats()
	if err := e.enter(); err != nil {
		return s, err
	}
	defer e.leave()
	var err error
	s.Store, err = e.store.Usage()
	return s, err
}

func (e *Engine) stats() Stats {
	s := Stats{
		Verdicts:             e.counters.verdicts.load(),
		Attempts:             e.counters.attempts.load(),
		TakenBack:            e.counters.takenBack.Load(),
		FilterNegatives:      e.screen.negatives.Load(),
		FilterFalsePositives: e.screen.falsePositives.Load(),
		FilterBytes:          e.screen.filterBytes(),
		FilterSource:         e.source,
		FilterRebuilding:     !e.screen.trusted.Load(),
		CacheHits:            e.counters.cacheHits.Load(),
		StoreReads:           e.counters.storeReads.Load(),
		OpenTransactions:     e.tx.count(),
		Holds:                len(e.Holds()),
		Names:                e.names.count(),
		Oldest:               e.OldestWeek(),
	}
	s.SnapshotFailures, s.LastSnapshotErr = e.snaps.failures()
	return s
}
