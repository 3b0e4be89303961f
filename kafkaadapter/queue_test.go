package kafkaadapter

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
)

func TestPollLoopSeesWhichPartitionsAreFullStarveOrAreBusy(t *testing.T) {
	limits := capacity{records: 4, bytes: 1 << 20}
	records := func(n int) (recs []*kgo.Record) {
		for i := range n {
			recs = append(recs, &kgo.Record{Offset: int64(i)})
		}
		return recs
	}
	for _, tt := range []struct {
		name                 string
		pushed, popped       int
		stable               int64
		more                 func(p *partition)
		full, starving, busy bool
	}{
		{name: "full", pushed: 4, stable: 9, full: true},
		{name: "empty before the end", pushed: 3, popped: 3, stable: 9, starving: true},
		{name: "empty at the end", pushed: 3, popped: 3, stable: 3},
		{name: "busy", pushed: 3, popped: 2, stable: 9, busy: true},
		{name: "before the first fetch", stable: 9, starving: true},
		{name: "before the first fetch of an empty log"},
		{name: "paused", pushed: 4, stable: 9, more: func(p *partition) { p.queue.pause(limits) }},
		{name: "interrupted", pushed: 3, popped: 3, stable: 9, more: func(p *partition) { p.queue.interrupt(errors.New("broken")) }},
		{name: "paused by the application", pushed: 3, popped: 3, stable: 9, more: func(p *partition) { p.c.pauses.set(true, "", nil) }},
		{name: "closed", pushed: 3, popped: 3, stable: 9, more: func(p *partition) { p.queue.close() }},
	} {
		p := &partition{c: &shared{}, queue: queue{wake: make(chan struct{}, 1), memory: feed.NewMemory(1 << 30)}}
		p.queue.start(0)
		p.queue.push(records(tt.pushed))
		p.queue.pop(nil, tt.popped, limits)
		p.ends.report(time.Now(), tt.stable, tt.stable)
		if tt.more != nil {
			tt.more(p)
		}
		got := crowded([]*partition{p}, limits)
		if slices.Contains(got.full, p) != tt.full || got.starving != tt.starving || got.busy != tt.busy {
			t.Errorf("%s: %+v; want full %v, starving %v, busy %v", tt.name, got, tt.full, tt.starving, tt.busy)
		}
	}
}
