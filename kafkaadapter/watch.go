package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// watchLoop watches the progress of the partitions, and logs why the consumer is not ready as long as
// it is not.
func (c *shared) watchLoop(ctx context.Context, parts *assignments, ready func() error) {
	t := time.NewTicker(min(time.Second, max(c.opt.SilenceTimeout/4, time.Millisecond)))
	defer t.Stop()
	var since time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, p := range parts.all() {
			checkProgress(p)
			reportRestoring(p)
		}
		switch err := ready(); {
		case err == nil:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > c.opt.SilenceTimeout/2:
			c.throttled(c.opt.Telemetry.Logger.Warn, "the consumer is not ready", topicPartition{},
				"group", c.opt.Group, "since", since.Round(time.Second), "error", err)
		}
	}
}

// reportRestoring logs that the partition's own store is restored, if that takes long.
func reportRestoring(p *partition) {
	if d := p.store.restoringFor(); d > p.c.opt.SilenceTimeout/2 {
		p.c.throttled(p.log.Info, "the partition's store is still being restored from its changelog", p.tp(),
			"for", d.Round(time.Second), "percent", int(100*p.store.progress.Ratio()))
	}
}

// The hindrances that are not errors.
var (
	errInFlight = errors.New("another transaction holds the event, or has made a claim on it that is not final: the handler of a copy runs, here or elsewhere")
	errHandling = errors.New("a handler has not returned")
	errNoMemory = errors.New("nothing is fetched, because the records of other partitions use all of MaxBufferedBytes: do their handlers hang? Raise it if they do not")
	errCommits  = errors.New("the store has not committed a batch, or the partition waits for its turn: one that was in conflict again and again keeps its turn until its batch commits, at most for 5 minutes")
)

// hinder records why the record at the partition's offset has not committed.
func (r *partitionState) hinder(reason string, err error) {
	r.partition.hindered.Store(&hindrance{r.next, reason, err})
}

// checkProgress reports a partition that is read and does not move although it has something to do, as long as
// that lasts.
func checkProgress(p *partition) {
	g := &p.progress
	at, owned := p.offsets.inMemory()
	s := p.currentStatus()
	if !owned || s.stop != nil || s.state != running && s.state != unprotected || !p.hasWork(at.Offset) || p.IsPaused() {
		*g = progress{}
		reportProgress(p)
		return
	}
	if g.since.IsZero() || g.next != at.Offset {
		*g = progress{at.Offset, time.Now()}
		reportProgress(p)
	}
	waited := time.Since(g.since)
	if waited <= p.c.opt.SilenceTimeout {
		return
	}
	reason, err := hindranceOf(p, at.Offset)
	if reason == "handler" && waited <= p.route.HandlerTimeout {
		return
	}
	reportStanding(p, reason, fmt.Errorf("%w: offset %d for %v: %w", ErrNoProgress, at.Offset, waited.Round(time.Second), err))
}

// hasWork reports whether the broker has records at or after an offset, or does not say, or a batch is under
// way.
func (p *partition) hasWork(next int64) bool {
	told := time.Since(time.Unix(0, p.ends.stableAt.Load()))
	return p.ends.stable.Load() > next || told > max(p.c.opt.SilenceTimeout, 2*p.c.opt.lagInterval) || p.handlers.batchAge() > 0
}

// hindranceOf returns what the partition waits for at its offset.
func hindranceOf(p *partition, next int64) (reason string, err error) {
	if p.handlers.batchAge() > p.c.opt.SilenceTimeout {
		if p.handlers.active.Load() > 0 {
			return "handler", fmt.Errorf("%w: that of offset %d", errHandling, p.handlers.running.Load())
		}
		return "commit", errCommits
	}
	if h := p.hindered.Load(); h != nil && h.offset == next {
		return h.reason, h.err
	}
	if p.c.memory.IsFull() {
		return "silent", errNoMemory
	}
	return "silent", fmt.Errorf("%w: its last stable offset is %d", ErrSilent, p.ends.stable.Load())
}

// reportStanding reports that the partition does not move.
func reportStanding(p *partition, reason string, err error) {
	e := &StopError{p.pos.Topic, p.pos.Partition, reason, err}
	if was := p.standing.Swap(e); was != nil && was.Reason == reason {
		p.c.throttled(p.log.Warn, "partition still makes no progress", p.tp(), "reason", reason, "error", err)
		return
	}
	p.c.m.stops.WithLabelValues(p.pos.Topic, reason).Inc()
	p.log.Error("partition makes no progress", "reason", reason, "error", err)
	p.onStop.begin(e, p.isEnding) // the other partitions do not wait for OnStop
}

// reportProgress ends the report of reportStanding.
func reportProgress(p *partition) {
	if was := p.standing.Swap(nil); was != nil {
		p.c.throttled(p.log.Info, "partition continues", p.tp(), "reason", was.Reason)
	}
}
