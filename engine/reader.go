package engine

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/hapax-dev/hapax/engine/internal/names"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A Reader answers questions about a store without an engine, and changes nothing: for the store of a
// process that has ended, a backup, or a copy on a read-only disk. It is safe for concurrent use. It has
// no filters, so that it opens at once and needs little memory; each answer reads the store. Claims in
// dropped weeks are hidden, even if the drop was interrupted.
//
// If the store is damaged, an answer that needs the damaged part is an error that wraps
// storage.ErrDamaged. A *storage.DamageError names the scopes and weeks to which the damage is confined.
// All other answers remain available.
type Reader struct {
	core     core
	retained retained
	finder   finder
	holds    holds
	outbox   outbox
	queries  queries
}

// OpenReader starts a Reader on a store, which pebble.OpenReader or bolt.OpenReader has opened. From then
// on, the Reader owns the store and closes it; if OpenReader fails, the caller still owns it.
func OpenReader(store storage.Reader) (*Reader, error) {
	if isNil(store) {
		return nil, errors.New("hapax: the store is nil: open one with pebble.OpenReader or bolt.OpenReader, and check its error")
	}
	r := &Reader{}
	r.core.init(store, Options{MaxIDBytes: defaultMaxIDBytes})
	r.core.applied.init(0)
	r.core.durable.init(0)
	r.finder = finder{core: &r.core, retained: &r.retained, names: names.New(ErrLimit)}
	r.queries = queries{&r.core, &r.finder}
	if err := loadState(store, &r.retained, r.finder.names, &r.holds, &r.outbox); err != nil {
		return nil, err
	}
	oldest, _, err := readOldest(store)
	r.retained.oldest.Store(uint32(oldest))
	return r, err
}

// Identity returns the identity of the store.
func (r *Reader) Identity() storage.Identity { return r.core.Identity() }

// OldestWeek returns the oldest retained week, weekbucket.Min if no engine has opened the store yet.
func (r *Reader) OldestWeek() weekbucket.Week { return r.retained.oldestWeek() }

// Lookup is Admin.Lookup. The scope must be named.
func (r *Reader) Lookup(ctx context.Context, scope string, id []byte, at time.Time) (rec ClaimRecord, found bool, err error) {
	return r.queries.lookup(ctx, scope, id, at)
}

// LookupAll is Admin.LookupAll. The scope must be named.
func (r *Reader) LookupAll(ctx context.Context, scope string, id []byte) ([]WeekClaim, error) {
	return r.queries.lookupAll(ctx, scope, id)
}

// Claims is Admin.Claims.
func (r *Reader) Claims(ctx context.Context, b storage.Bucket, after []byte) iter.Seq2[Claim, error] {
	return r.queries.claims(ctx, b, after)
}

// Scopes is Admin.Scopes.
func (r *Reader) Scopes(ctx context.Context) ([]ScopeWeeks, error) { return r.queries.scopes(ctx) }

// Weeks lists the retained weeks with claims, oldest first. It counts the claims by reading all of them.
// If some cannot be read, it returns the others and a *storage.DamageError.
func (r *Reader) Weeks(ctx context.Context) ([]WeekInfo, error) {
	counts := make(map[storage.Bucket]uint64)
	buckets, err := r.queries.buckets(ctx)
	if err != nil && !isConfined(err) {
		return nil, err
	}
	for _, b := range buckets {
		counts[b] = 0 // also if none of them can be read
		for _, failed := range r.queries.claims(ctx, b, nil) {
			switch {
			case failed == nil:
				counts[b]++
			case isConfined(failed):
				err = addDamage(err, failed)
			default:
				return nil, failed
			}
		}
	}
	list, failed := r.queries.weekInfos(counts)
	if failed != nil {
		return nil, failed
	}
	return list, err
}

// addDamage returns one DamageError for two.
func addDamage(first, second error) error {
	var sum, more *storage.DamageError
	if !errors.As(first, &sum) || !errors.As(second, &more) {
		return second
	}
	return &storage.DamageError{Parts: append(sum.Parts[:len(sum.Parts):len(sum.Parts)], more.Parts...), Err: sum.Err}
}

// Holds returns the holds, sorted by name.
func (r *Reader) Holds() []Hold { return r.holds.list() }

// Offsets is Admin.Offsets.
func (r *Reader) Offsets(ctx context.Context, group string) (map[OffsetKey]Offset, error) {
	return r.queries.offsets(ctx, group)
}

// Offset is Admin.Offset.
func (r *Reader) Offset(ctx context.Context, p OffsetKey) (o Offset, found bool, err error) {
	return r.queries.offset(ctx, p)
}

// Outbox is Admin.Outbox.
func (r *Reader) Outbox(ctx context.Context) iter.Seq2[OutboxMessage, error] {
	return r.queries.outbox(ctx)
}

// OutboxBytes returns the size of the messages in the outbox.
func (r *Reader) OutboxBytes() uint64 { return r.outbox.size() }

// Get is Engine.Get.
func (r *Reader) Get(ctx context.Context, key []byte) (value []byte, found bool, err error) {
	return spaceKeys{&r.core, applicationSpace}.Get(ctx, key)
}

// Scan is Engine.Scan.
func (r *Reader) Scan(ctx context.Context, keys Range) iter.Seq2[KeyValue, error] {
	return spaceKeys{&r.core, applicationSpace}.Scan(ctx, keys)
}

// Usage returns the sizes of the store, and the damaged parts that reads have met.
func (r *Reader) Usage() (storage.Usage, error) {
	if err := r.core.enter(); err != nil {
		return storage.Usage{}, err
	}
	defer r.core.leave()
	return r.core.store.Usage()
}

// Verify reads the whole store, and checks every claim and record, and the store's own checksums. Unlike
// Admin.Verify, it has no filters and counts with which to compare the claims.
func (r *Reader) Verify(ctx context.Context) (VerifyReport, error) {
	var report VerifyReport
	err := r.core.untilClose(ctx, func(ctx context.Context) error {
		err := r.core.store.Scan(ctx, storage.Span{}, func() {}, func(key, record []byte) error {
			_, retained, err := r.finder.scanned(key, record)
			if retained {
				report.Claims++
			}
			return err
		})
		switch {
		case errors.Is(err, storage.ErrDamaged):
			report.add("%v", err)
		case err != nil:
			return err
		}
		return r.core.store.Verify(ctx, func(problem string) { report.add("%s", problem) })
	})
	return report, err
}

// Close cancels calls in progress, waits for them, and closes the store.
func (r *Reader) Close() error {
	if err := r.core.beginClose(); err != nil {
		return err
	}
	return r.core.store.Close()
}
