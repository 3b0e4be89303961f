package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/untrusted"
)

// Copies keeps the local copy of one log.
type Copies = storage.Copies

// Options of Open and Follow. The zero value is safe.
type Options struct {
	// PartBytes is the size of a record from which on a batch is divided, 0 for 900 KiB. It must be
	// less than what the log accepts.
	PartBytes int

	// Logger receives why a copy is discarded. nil = slog.Default().
	Logger *slog.Logger
}

const defaultPartBytes = 900 << 10

// A Restore says what was read when a copy was brought up to date.
type Restore struct {
	Batches   uint64
	Claims    uint64
	Discarded error // why there was no copy to begin with, nil if there was one or none was expected
}

// A follower brings a copy up to date with the log.
type follower struct {
	log    Log
	copies Copies
	logger *slog.Logger

	topic    [16]byte
	copy     storage.Store // nil until the identity of the log is known; if there is one, it has a position or is new
	seq      uint64        // of the newest batch in the copy, by its own number
	position position
	valid    validity // at the last record that was read
	restored bool     // a copy was damaged while it was brought up to date: if the next one is, too, that ends it
	reader   bodyReader
	state    []storage.StateWrite // used by apply
	restore  Restore
}

func newFollower(log Log, copies Copies, o Options) *follower {
	return &follower{log: log, copies: copies, logger: untrusted.Logger(o.Logger), position: position{offset: -1}}
}

// open opens the copy, and discards one that cannot be continued.
func (f *follower) open(ctx context.Context) (err error) {
	if f.topic, err = f.log.Topic(ctx); err != nil {
		return err
	}
	f.copy, err = f.copies.Open()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.copy = nil
		return nil
	case errors.Is(err, storage.ErrDamaged):
		f.copy = nil
		return f.discard(err)
	case err != nil:
		f.copy = nil
		return err
	}
	value, found, err := f.copy.State(positionKey)
	if err == nil && found {
		f.position, err = parsePosition(value)
	}
	if err == nil && found {
		f.seq = f.copy.LastSeq()
		err = dropUnretained(f.copy)
	}
	switch id := f.copy.Identity(); {
	case errors.Is(err, storage.ErrDamaged):
		return f.discard(err)
	case err != nil:
		return errors.Join(err, f.close())
	case !found && f.copy.LastSeq() > 0:
		return errors.Join(fmt.Errorf("%w: the directory for the copy has a store that is no copy: give another directory", storage.ErrForeign), f.close())
	case !found: // it is new: create compares its identity
	case f.position.topic != f.topic:
		return f.discard(fmt.Errorf("the topic is another one: it was deleted and created again, or the directory is that of another one"))
	case id.Incarnation != 1:
		return f.discard(fmt.Errorf("it is a backup"))
	}
	return nil
}

func (f *follower) close() error {
	if f.copy == nil {
		return nil
	}
	err := f.copy.Close()
	f.copy = nil
	return err
}

// discard removes the copy; the next read begins at the log's start.
func (f *follower) discard(why error) error {
	if f.copy != nil {
		_ = f.close() // it is not needed
	}
	f.position, f.seq = position{offset: -1}, 0
	if why != nil {
		f.restore.Discarded = why
		f.logger.Warn("hapax: the local copy of a changelog is discarded and restored", "reason", why)
	}
	return f.copies.Remove()
}

// read applies what counts, from the copy's position or the log's start, to an offset or until until,
// which may be nil, returns true. It first compares the record at the position.
func (f *follower) read(ctx context.Context, to int64, until func(offset int64, value []byte) bool) error {
	for {
		start, end, err := f.log.Bounds(ctx)
		if err != nil {
			return err
		}
		at := f.position.offset
		if at >= 0 && at < start {
			// The copy may be all that remains of a log whose beginning was removed.
			if _, err := f.first(ctx); err != nil {
				return err
			}
			if err := f.discard(fmt.Errorf("the log begins at offset %d, the copy is at %d", start, at)); err != nil {
				return err
			}
			continue
		}
		if at >= min(end, to) {
			err = f.isLost(ctx, lost("it ends at offset %d, the copy is at %d", end, at))
		} else {
			err = f.readFrom(ctx, max(start, at), to, until)
		}
		switch {
		case errors.Is(err, ErrOutOfRange) && at < 0 && ctx.Err() == nil:
			continue // it was trimmed meanwhile
		case errors.Is(err, ErrOutOfRange):
			if now, _, err := f.log.Bounds(ctx); err != nil {
				return err
			} else if f.position.offset < now {
				continue
			}
			err = f.isLost(ctx, lost("it does not have offset %d any more", f.position.offset))
		}
		if errors.Is(err, storage.ErrDamaged) && !f.restored {
			f.restored = true
			err = cmp.Or(f.discard(err), errDiscarded)
		}
		if !errors.Is(err, errDiscarded) {
			return err
		}
	}
}

// errDiscarded means that the copy was discarded, so that reading begins at the log's start.
var errDiscarded = errors.New("the copy was discarded")

// readFrom reads from an offset, which is the position of the copy if it has one.
func (f *follower) readFrom(ctx context.Context, from, to int64, until func(offset int64, value []byte) bool) error {
	compared := f.position.offset < 0
	f.valid = validity{body: f.valid.body[:0]}
	if !compared {
		f.valid.id, f.valid.token, f.valid.seq = f.copy.Identity(), f.position.token, f.position.seq
	}
	var failed error
	err := f.log.Read(ctx, from, to, func(offset int64, value []byte) bool {
		if !compared {
			compared = true
			if offset != from || !f.position.isAt(value) {
				failed = errOtherRecord
				return false
			}
			return until == nil || !until(offset, value)
		}
		var v verdict
		if v, failed = f.valid.next(value); v == isBatch && failed == nil {
			failed = f.restoreBatch(offset)
		}
		return failed == nil && (until == nil || !until(offset, value))
	})
	if errors.Is(failed, errOtherRecord) {
		return f.isLost(ctx, lost("the record at offset %d is not the one that the copy has", from))
	}
	if failed != nil {
		return failed
	}
	return err
}

var errOtherRecord = errors.New("another record")

// isLost decides whether the log has lost records, or is another one than that of the copy: then the copy
// is discarded.
func (f *follower) isLost(ctx context.Context, loss error) error {
	first, err := f.first(ctx)
	if err != nil && !errors.Is(err, ErrChangelogDamaged) && !errors.Is(err, storage.ErrNewerFormat) {
		return err
	}
	if first.token != (token{}) && first.id != f.copy.Identity() {
		return cmp.Or(f.discard(errors.New("the changelog is that of another store")), errDiscarded)
	}
	return loss
}

// first reads the first record of the log, and does not wait for one. It fails with ErrChangelogDamaged
// if the log's beginning was removed.
func (f *follower) first(ctx context.Context) (first validity, err error) {
	start, end, err := f.log.Bounds(ctx)
	if err != nil {
		return first, err
	}
	if start >= end {
		if start > 0 {
			err = removed(start)
		}
		return first, err
	}
	var failed error
	err = f.log.Read(ctx, start, start+1, func(_ int64, value []byte) bool {
		_, failed = first.next(value)
		return false
	})
	if errors.Is(err, ErrOutOfRange) {
		err = nil
	}
	return first, cmp.Or(failed, err)
}

// removed is the error of a log that begins at an offset and has no open record: it is not a new one.
func removed(start int64) error {
	return damaged("all records before offset %d were removed, and none follows", start)
}

// restoreBatch applies the batch that was read to the copy.
func (f *follower) restoreBatch(offset int64) error {
	b, err := f.reader.read(f.valid.body, f.valid.id.Seed)
	if err != nil {
		return err
	}
	if err := f.create(); err != nil {
		return err
	}
	wait, err := f.apply(b, offset)
	if err == nil {
		err = wait()
	}
	if err == nil && hasMark(b) {
		err = dropUnretained(f.copy)
	}
	f.restore.Batches++
	f.restore.Claims += uint64(len(b.Claims))
	return err
}

// create makes the copy if there is none, or one without batches of another log.
func (f *follower) create() (err error) {
	if f.copy != nil && f.seq == 0 && f.copy.Identity() != f.valid.id {
		if err := f.discard(nil); err != nil {
			return err
		}
	}
	if f.copy == nil {
		if f.copy, err = f.copies.Create(f.valid.id); err != nil {
			f.copy = nil
		}
	}
	return err
}

// apply applies a batch that counts to the copy, with its position.
func (f *follower) apply(b *storage.Batch, offset int64) (wait func() error, err error) {
	f.position = position{f.topic, f.valid.token, offset, f.valid.seq}
	f.seq++
	f.state = append(append(f.state[:0], b.State...), storage.StateWrite{Key: positionKey, Value: f.position.encode()})
	copied := *b
	copied.Seq, copied.State = f.seq, f.state
	return f.copy.Apply(&copied)
}

// Follow brings the copy up to date with the log until ctx ends, and closes it. It never appends to the
// log and never decides: another member, or a later Open, does.
func Follow(ctx context.Context, log Log, copies Copies, o Options) error {
	f := newFollower(log, copies, o)
	err := f.open(ctx)
	if err == nil {
		err = f.read(ctx, noEnd, nil)
	}
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, f.close())
}
