package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/decode"
	"github.com/hapax-dev/hapax/internal/wait"
	"github.com/hapax-dev/hapax/weekbucket"
)

// How long the run of a missed night waits after Open.
const (
	nightlyDelay  = time.Minute      // in any case, for consumers to begin and applications to place holds
	consumerDelay = 10 * time.Minute // for a consumer to begin, if an earlier one has left holds
	holdsEvery    = time.Second      // between looks at the holds
)

// runNightly drops expired weeks each night until ctx ends. Open starts it with the current time of
// its clock, and Close waits for it.
func (t *Retention) runNightly(ctx context.Context, now time.Time) {
	at := t.core.opt.Nightly.At
	missed, err := t.missedNight(ctx, now)
	if err != nil {
		return // the engine is closing or has failed
	}
	if missed {
		if t.core.ownerships.await(ctx, t.holds, weekbucket.NextDaily(now, at).Sub(now)) != nil || !t.dropNightly(ctx) {
			return
		}
		now = t.core.now()
	}
	for {
		next := weekbucket.NextDaily(now, at)
		// The clock may jump, so it is read at least every hour.
		for now.Before(next) {
			if wait.For(ctx, min(next.Sub(now), time.Hour)) != nil {
				return
			}
			if now = t.core.now(); now.Add(25 * time.Hour).Before(next) { // the clock was set back
				next = weekbucket.NextDaily(now, at)
			}
		}
		if !t.dropNightly(ctx) {
			return
		}
		now = t.core.now()
	}
}

// await waits until the owners have placed their holds, or until most, the time to the next
// night, has passed. It returns an error if ctx ends first.
func (s *ownerships) await(ctx context.Context, there *holds, most time.Duration) error {
	opened, delay := time.Now(), nightlyDelay
	if there.count() > 0 {
		delay = consumerDelay
	}
	for {
		waited := time.Since(opened)
		owners, all := s.placed(there)
		if waited >= most || all && (waited >= delay || owners > 0 && waited >= nightlyDelay) {
			return nil
		}
		if err := wait.For(ctx, min(holdsEvery, most-waited)); err != nil {
			return err
		}
	}
}

// dropNightly does one run. It returns false if the engine is closing or has failed.
func (t *Retention) dropNightly(ctx context.Context) bool {
	ran := t.core.now()
	r, err := t.DropExpired(ctx)
	if err == nil || errors.Is(err, ErrLimit) {
		err = errors.Join(err, t.noteNight(ctx, ran))
	}
	if ctx.Err() != nil || errors.Is(err, ErrClosed) || errors.Is(err, ErrStopped) {
		return false
	}
	if report := t.core.opt.Nightly.Report; report != nil {
		report(r, err)
	}
	return true
}

// The stored note of the last nightly run has its time in Unix milliseconds as a varint, and the
// incarnation of the store as a uvarint.

// missedNight reports whether a run is overdue. A backup has the note of its source: missedNight
// replaces it, and no run is overdue. A note from the future was written while the clock was ahead,
// and is ignored.
func (t *Retention) missedNight(ctx context.Context, now time.Time) (bool, error) {
	last, of, err := t.lastNight()
	switch {
	case err != nil:
		return false, err
	case of != t.core.store.Identity().Incarnation:
		return false, t.noteNight(ctx, now)
	}
	return last.After(now) || !weekbucket.NextDaily(last, t.core.opt.Nightly.At).After(now), nil
}

// lastNight reads the note. Without a note, it returns values with which a run is overdue unless
// the store is a backup.
func (t *Retention) lastNight() (at time.Time, incarnation uint64, err error) {
	if err := t.core.enter(); err != nil {
		return at, 0, err
	}
	defer t.core.leave()
	value, found, err := t.core.store.State(keyNightly)
	if err != nil {
		return at, 0, t.core.stop(err)
	}
	if !found {
		return at, 1, nil
	}
	d := decode.Decoder{Rest: value}
	at, incarnation = time.UnixMilli(d.Varint()), d.Uvarint()
	if d.Bad || len(d.Rest) != 0 {
		err = t.core.stop(fmt.Errorf("%w: note of the nightly run %x", storage.ErrDamaged, value))
	}
	return at, incarnation, err
}

func (t *Retention) noteNight(ctx context.Context, ran time.Time) error {
	value := binary.AppendVarint(nil, ran.UnixMilli())
	value = binary.AppendUvarint(value, t.core.store.Identity().Incarnation)
	return t.queue.control(ctx, func(g *group) error {
		g.batch.State = append(g.batch.State, storage.StateWrite{Key: keyNightly, Value: value})
		return nil
	})
}
