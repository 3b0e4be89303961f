package outbox

import (
	"context"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/entry"
)

// maxDueCounted is the maximum number of delayed entries that have become due and are counted one
// by one.
const maxDueCounted = 10_000

func (s *shared) figures(ctx context.Context) (f figures, err error) {
	space := driver.In(s.eng, entry.Space)
	// Gone is read first: a commit in between can then only make the result too high.
	var gone entry.Gone
	if value, found, err := space.Get(ctx, entry.GoneKey); err != nil {
		return f, err
	} else if found {
		if gone, err = entry.ParseGone(value); err != nil {
			return f, damaged(err)
		}
	}
	var produced entry.Produced
	if value, found, err := space.Get(ctx, entry.ProducedKey); err != nil {
		return f, err
	} else if found {
		if produced, err = entry.ParseProduced(value); err != nil {
			return f, damaged(err)
		}
	}
	stats, err := s.eng.Stats()
	if err != nil {
		return f, err
	}
	f.bytes, f.maxBytes, f.held = stats.OutboxBytes, stats.MaxOutboxBytes, s.holds.n.Load()
	f.parked = gone.Parked - gone.Redriven - gone.Dropped
	f.pending = produced.Entries + gone.Redriven - gone.Entries
	f.due = f.pending - min(f.pending, produced.Delayed+gone.Redriven-gone.Delayed)
	now := s.opt.Clock.Now().UnixMilli()
	oldest := s.marks.due.Load()
	add := func(due int64) {
		if oldest == 0 || due < oldest {
			oldest = due
		}
	}
	for kv, err := range space.Scan(ctx, s.marks.ready()) {
		if err != nil {
			return f, err
		}
		e, err := parse(kv)
		if err != nil {
			return f, err
		}
		add(e.Due)
		break
	}
	counted := 0
	for kv, err := range space.Scan(ctx, engine.Range{Prefix: entry.DelayedPrefix}) {
		if err != nil {
			return f, err
		}
		due, err := entry.DelayedDue(kv.Key)
		if err != nil {
			return f, damaged(err)
		}
		if due > now || counted == maxDueCounted {
			break
		}
		add(due)
		counted++
	}
	f.due = min(f.due+uint64(counted), f.pending)
	if oldest > 0 {
		f.oldest = time.Duration(max(now-oldest, 0)) * time.Millisecond
	}
	return f, nil
}
