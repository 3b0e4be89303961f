package enginetest

import (
	"context"
	"errors"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
)

func (c *checker) claim(t *rapid.T) {
	ev, k := c.event(t)
	want, _ := c.expect(ev, k, nil, nil)
	r, err := c.e.TryClaim(context.Background(), ev)
	if want = c.checkResult(r, err, want, k); want.IsClaimed() {
		c.claimed(ev, k, want.Record)
		c.lease(k, want)
	}
}

func (c *checker) batch(t *rapid.T) {
	var events []engine.Event
	var keys []claimKey
	for range rapid.IntRange(0, 8).Draw(t, "events") {
		ev, k := c.event(t)
		events, keys = append(events, ev), append(keys, k)
	}
	rs, err := c.judge(t, events)
	if err != nil {
		c.Fatalf("a batch: %v", err)
	}
	for i, k := range keys {
		want, _ := c.expect(events[i], k, nil, nil)
		if rs[i].Record != (engine.ClaimRecord{}) && !want.IsClaimed() && c.isNear(events[i], k, rs[i].Record) {
			// if there are several claims, it may be any of them: it may have been found before
			// this one was made
			want = c.answer(events[i], rs[i].Record, false)
		}
		if want = c.checkResult(rs[i], rs[i].Err, want, k); want.IsClaimed() {
			c.claimed(events[i], k, want.Record)
			c.lease(k, want)
		}
	}
}

// judge lets the engine judge a batch, or parts of it that are in flight together.
func (c *checker) judge(t *rapid.T, events []engine.Event) (results []engine.Result, err error) {
	if rapid.Bool().Draw(t, "at once") {
		return c.e.TryClaimBatch(context.Background(), events)
	}
	var started []*engine.ClaimBatch
	for len(events) > 0 {
		n := rapid.IntRange(1, len(events)).Draw(t, "part")
		started, events = append(started, c.e.StartClaimBatch(context.Background(), events[:n])), events[n:]
	}
	for _, b := range started {
		rs, failed := b.Wait(context.Background())
		results, err = append(results, rs...), errors.Join(err, failed)
	}
	return results, err
}

func (c *checker) forget(t *rapid.T) {
	_, k := c.event(t)
	_, there := c.told.claims[k]
	found, err := c.e.Admin().Forget(context.Background(), k.scope, []byte(k.id), k.week.Start())
	if c.held[k] {
		if !errors.Is(err, engine.ErrConflict) {
			c.Fatalf("forgetting %v, which is held: %v", k, err)
		}
		return
	}
	if err != nil || found != there {
		c.Fatalf("forgetting %v: %v %v, want %v", k, found, err, there)
	}
	c.overtakes(k)
	delete(c.told.claims, k)
}

// useLease finishes, renews or releases a claim outside a transaction.
func (c *checker) useLease(t *rapid.T) {
	if len(c.lent) == 0 {
		return
	}
	l, ctx := c.pick(t), context.Background()
	rec, holds := c.told.claims[l.key], c.holds(l)
	var err error
	switch do := rapid.SampledFrom([]string{"finish", "renew", "release"}).Draw(t, "use"); do {
	case "finish":
		data := rapid.SampledFrom([]string{"", "result"}).Draw(t, "data")
		err = c.e.Finish(ctx, l.Lease, []byte(data))
		rec = ended(rec, engine.Done, data)
	case "renew":
		rec.LeaseEnd, err = c.e.Renew(ctx, l.Lease, time.Hour)
		if holds && !rec.LeaseEnd.Equal(c.clock.Add(time.Hour)) {
			c.Fatalf("renewing %v: it ends at %v", l.key, rec.LeaseEnd)
		}
	case "release":
		err = c.e.Release(ctx, l.Lease)
		rec = ended(rec, engine.Released, "")
		rec.Fingerprint = ""
	}
	if holds != (err == nil) || !holds && !errors.Is(err, engine.ErrLeaseLost) {
		c.Fatalf("a lease on %v, which holds it %v: %v", l.key, holds, err)
	}
	if holds {
		c.told.claims[l.key] = rec
	}
}
