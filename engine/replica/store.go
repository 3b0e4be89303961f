package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/zeebo/xxh3"
)

// A Store is a storage.Store whose batches are in a log. Make it with Open.
//
// Apply blocks until the log has the batch and the batch counts, and only then writes the copy. All
// other calls use the copy only: what they remove, they remove of this copy.
type Store struct {
	oneEngine storage.OneEngine
	copy      storage.Store
	lastSeq   uint64
	restore   Restore
	damaged   atomic.Bool // the copy

	owned  context.Context // ends with the ownership
	revoke context.CancelCauseFunc
	failed atomic.Pointer[error] // set once; then nothing is appended any more
	writer writer
}

var _ storage.Store = (*Store)(nil)

// A writer appends batches and applies them to the copy. Apply uses it, one call at a time.
type writer struct {
	follower  *follower // its validity is that of the log up to last
	last      int64     // the offset of the last own record that is known to count
	lastHash  xxh3.Uint128
	epoch     int32 // of the leader that answered last
	partBytes int
	body      []byte // used again
	record    []byte
}

// Open makes this member the owner of the log: it reads the log into the copy, appends an open record
// and reads on to that. The former owner's batches are void from then on. It blocks while the log does
// not answer, at most until ctx ends.
//
// It fails with ErrChangelogDamaged, ErrChangelogLost, ErrUnknownOutcome, storage.ErrNewerFormat, or an
// error of the log or the copy. A copy that is damaged, of another log, or older than the log's start
// is discarded and restored.
func Open(ctx context.Context, log Log, copies Copies, o Options) (*Store, error) {
	f := newFollower(log, copies, o)
	s := &Store{writer: writer{follower: f, partBytes: o.PartBytes}}
	if s.writer.partBytes == 0 {
		s.writer.partBytes = defaultPartBytes
	}
	err := f.open(ctx)
	for owner := false; err == nil && !owner; {
		owner, err = s.writer.takeOver(ctx)
	}
	if err == nil {
		err = f.create()
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	s.copy, s.lastSeq, s.restore = f.copy, f.seq, f.restore
	s.owned, s.revoke = context.WithCancelCause(context.Background())
	return s, nil
}

// takeOver reads the log, appends an open record and reads to it. It returns false if that does not
// count, because another member was faster.
func (w *writer) takeOver(ctx context.Context) (owner bool, err error) {
	f := w.follower
	start, end, err := f.log.Bounds(ctx)
	if err == nil {
		err = f.read(ctx, end, nil)
	}
	if err != nil {
		return false, err
	}
	open := openRecord{id: f.valid.id, token: newToken(), prev: f.valid.token}
	if open.prev == (token{}) {
		if start > 0 {
			return false, removed(start)
		}
		open.id = storage.NewIdentity()
	}
	record := open.encode()
	ack, err := f.log.Append(ctx, record)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
	err = f.read(ctx, noEnd, func(offset int64, value []byte) bool {
		w.last = offset
		return offset >= ack.Offset && ack.Offset >= 0 || ack.Offset < 0 && bytes.Equal(value, record)
	})
	w.lastHash, w.epoch = xxh3.Hash128(record), ack.Epoch
	return f.valid.token == open.token, err
}

// Apply implements storage.Store: first the log, then the copy. After an error nothing more is
// appended.
func (s *Store) Apply(b *storage.Batch) (wait func() error, err error) {
	if failed := s.failed.Load(); failed != nil {
		return nil, *failed
	}
	if wait, err = s.writer.apply(s.owned, b); err != nil {
		if s.owned.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(s.owned), err)
		}
		s.failed.Store(&err)
		return nil, s.noteDamage(err)
	}
	return wait, nil
}

func (w *writer) apply(ctx context.Context, b *storage.Batch) (wait func() error, err error) {
	f := w.follower
	if b.Seq != f.seq+1 {
		return nil, fmt.Errorf("hapax: batch %d applied after batch %d", b.Seq, f.seq)
	}
	w.body = appendBody(w.body[:0], b, f.valid.id.Seed)
	r := batchRecord{token: f.valid.token, seq: f.valid.seq + 1, parts: uint64(max((len(w.body)+w.partBytes-1)/w.partBytes, 1))}
	for rest := w.body; r.part < r.parts; r.part++ {
		n := min(len(rest), w.partBytes)
		r.body, rest = rest[:n], rest[n:]
		w.record = r.appendTo(w.record[:0])
		if err := w.append(ctx, w.record); err != nil {
			return nil, err
		}
	}
	return f.apply(b, w.last)
}

// append appends one record and makes sure that it counts.
func (w *writer) append(ctx context.Context, record []byte) error {
	ack, err := w.follower.log.Append(ctx, record)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
	switch {
	case ack.Offset >= 0 && ack.Offset <= w.last:
		return lost("a record was appended at offset %d, after offset %d was acknowledged", ack.Offset, w.last)
	case ack.Epoch != w.epoch:
		err = w.readBack(ctx, w.last, ack.Offset, record)
	case ack.Offset != w.last+1:
		err = w.readBack(ctx, w.last+1, ack.Offset, record)
	default:
		w.last = ack.Offset
		err = w.counts(record)
	}
	w.lastHash, w.epoch = xxh3.Hash128(record), ack.Epoch
	return err
}

// counts notes a record of this owner, which must count.
func (w *writer) counts(record []byte) error {
	v, err := w.follower.valid.next(record)
	if err == nil && v != isPart && v != isBatch {
		err = damaged("a record of the owner does not count") // it does by construction
	}
	return err
}

// readBack reads until it finds the record, which was acknowledged at an offset, or at an unknown one
// (-1). If it begins with the last own record, that must be there.
func (w *writer) readBack(ctx context.Context, from, acked int64, record []byte) error {
	to := int64(noEnd)
	if acked >= 0 {
		to = acked + 1
	}
	compared, found := from > w.last, false
	var failed error
	err := w.follower.log.Read(ctx, from, to, func(offset int64, value []byte) bool {
		if !compared {
			compared = true
			if offset != w.last || xxh3.Hash128(value) != w.lastHash {
				failed = lost("offset %d has another record than the one that was acknowledged", w.last)
			}
			return failed == nil
		}
		var v verdict
		v, failed = w.follower.valid.next(value)
		switch {
		case failed != nil:
		case v == isOpen:
			failed = ErrFenced
		case v == isVoid:
		case !bytes.Equal(value, record):
			failed = damaged("offset %d has a batch of this owner that it did not append", offset)
		default:
			w.last, found = offset, true
		}
		return failed == nil && !found
	})
	switch {
	case failed != nil:
		return failed
	case errors.Is(err, ErrOutOfRange):
		return lost("it does not have offset %d any more", from)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	case !found:
		return lost("offset %d does not have the record that was acknowledged there", acked)
	}
	return nil
}

// Revoke ends the ownership: an Apply that waits for the log returns, and nothing more is appended. Call
// it before the engine is closed when the partition was revoked or the log does not answer: Close waits
// for Apply. It may be called at any time, and more than once.
func (s *Store) Revoke() { s.revoke(ErrRevoked) }

// Restore returns what Open has read to bring the copy up to date.
func (s *Store) Restore() Restore { return s.restore }

// noteDamage notes that the copy is damaged, so that Close removes it.
func (s *Store) noteDamage(err error) error {
	if errors.Is(err, storage.ErrDamaged) {
		s.damaged.Store(true)
	}
	return err
}

// Acquire implements storage.Store.
func (s *Store) Acquire() error { return s.oneEngine.Acquire() }

// Release implements storage.Store.
func (s *Store) Release() { s.oneEngine.Release() }

// Identity implements storage.Store: it is that of the log.
func (s *Store) Identity() storage.Identity { return s.copy.Identity() }

// LastSeq implements storage.Store.
func (s *Store) LastSeq() uint64 { return s.lastSeq }

// Claim implements storage.Store.
func (s *Store) Claim(key []byte) (record []byte, found bool, err error) {
	record, found, err = s.copy.Claim(key)
	return record, found, s.noteDamage(err)
}

// State implements storage.Store.
func (s *Store) State(key []byte) (value []byte, found bool, err error) {
	if bytes.Equal(key, positionKey) {
		return nil, false, nil
	}
	value, found, err = s.copy.State(key)
	return value, found, s.noteDamage(err)
}

// ScanState implements storage.Store.
func (s *Store) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	return s.noteDamage(s.copy.ScanState(span, func(key, value []byte) error {
		if bytes.Equal(key, positionKey) {
			return nil
		}
		return fn(key, value)
	}))
}

// Buckets implements storage.Store.
func (s *Store) Buckets(fn func(storage.Bucket) error) error {
	return s.noteDamage(s.copy.Buckets(fn))
}

// Scan implements storage.Store.
func (s *Store) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	return s.noteDamage(s.copy.Scan(ctx, span, started, fn))
}

// Journal implements storage.Store.
func (s *Store) Journal(from uint64, fn func(seq uint64, entry []byte) error) error {
	return s.noteDamage(s.copy.Journal(from, fn))
}

// TrimJournal implements storage.Store.
func (s *Store) TrimJournal(below uint64) error { return s.copy.TrimJournal(below) }

// Drop implements storage.Store. Other copies drop the buckets when they apply the engine's mark.
func (s *Store) Drop(buckets []storage.Bucket) error { return s.noteDamage(s.copy.Drop(buckets)) }

// Reclaim implements storage.Store.
func (s *Store) Reclaim(ctx context.Context, buckets []storage.Bucket) error {
	return s.copy.Reclaim(ctx, buckets)
}

// ReclaimState implements storage.Store.
func (s *Store) ReclaimState(ctx context.Context, span storage.Span) error {
	return s.copy.ReclaimState(ctx, span)
}

// Usage implements storage.Store: the sizes are those of the copy.
func (s *Store) Usage() (storage.Usage, error) { return s.copy.Usage() }

// BucketBytes implements storage.Store.
func (s *Store) BucketBytes(b storage.Bucket) (uint64, error) { return s.copy.BucketBytes(b) }

// WriteSidecar implements storage.Store.
func (s *Store) WriteSidecar(name string, write func(io.Writer) error) error {
	return s.copy.WriteSidecar(name, write)
}

// ReadSidecar implements storage.Store.
func (s *Store) ReadSidecar(name string, read func(r io.Reader, size int64) error) error {
	return s.copy.ReadSidecar(name, read)
}

// Backup implements storage.Store: it is one of the copy, which can be opened as a store of its own.
func (s *Store) Backup(ctx context.Context, dir string) error { return s.copy.Backup(ctx, dir) }

// Verify implements storage.Store: it verifies the copy.
func (s *Store) Verify(ctx context.Context, report func(problem string)) error {
	return s.noteDamage(s.copy.Verify(ctx, report))
}

// Close implements storage.Store. A copy in which damage was found is removed, so that the next Open
// restores it.
func (s *Store) Close() error {
	s.oneEngine.Retire()
	s.Revoke()
	err := s.noteDamage(s.copy.Close())
	if s.damaged.Load() {
		err = errors.Join(err, s.writer.follower.copies.Remove())
	}
	return err
}
