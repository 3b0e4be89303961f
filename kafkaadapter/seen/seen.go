// Package seen finds the records that are not duplicates, for a consumer with its own franz-go loop.
//
//	filter, err := seen.New(eng, seen.Options{Scope: "alerts"})
//	for {
//		fetches := client.PollFetches(ctx)
//		records, err := filter.Unseen(ctx, fetches) // and fetches.Errors()
//		...
//		client.CommitUncommittedOffsets(ctx)
//	}
//
// The ids and times of records are those of package identify. The records of a poll are claimed
// together, each by an at-most-once claim, before they are handled.
//
// # What it promises
//
// Within retention each event is returned by one Unseen, however often it is polled: after a crash,
// a rebalance, a reset of offsets, or because a producer sent it twice. This holds after a power
// failure too.
//
// # What it does not promise
//
// Events are handled at most once. An event that was returned is not returned again, even if the
// process dies before it is handled. Call [Filter.Claim], and [Filter.Release] for what failed, so
// that these events can be claimed again; then poll them again, by setting the client's offsets
// back or by not committing them and starting again.
//
// Offsets belong to the client, and are independent of the claims. Commit an offset after Unseen
// has returned its record: if an offset is committed before and the process dies in between,
// records are skipped that were not handled. So commit by hand (kgo.DisableAutoCommit), in the
// order of the loop above.
//
// Claims belong to the process's store. A partition that moves to a consumer with another store is
// handled there again.
//
// The client is the application's. Set kgo.MaxDecompressBatchBytes: by default a few kilobytes of a
// hostile producer may decompress to 1 GiB.
//
// For work that must be done exactly once, with its state and its offset, use package kafkaadapter.
package seen

import (
	"bytes"

	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// Options configure a Filter. Scope must be set.
type Options struct {
	// Scope is the logical consumer, such as the name of its group. Filters of one engine with one
	// scope share their claims.
	Scope string

	// Identify finds the id and the time of the event in a record. Records without an id are
	// identified by their positions, which identify a record that is read again, but not a copy
	// that a producer sends again.
	Identify identify.Rules

	// Window makes claims last for a time instead of for their week: see kafkaadapter.Route.Window.
	// A copy is a duplicate if it arrives within the window, or if the timestamps of the records are
	// less than the window apart. Records need no time then. 0 = as long as the week is retained.
	Window time.Duration

	// Reject is called with records that cannot be judged: without a usable id or time (an error of
	// Identify.Payload included), too old, or too new. Unseen then omits them. nil: Unseen returns
	// an error for them.
	Reject func(Claim)
}

// A Filter claims the events of records. It is safe for concurrent use if Options.Reject is.
type Filter struct {
	eng *engine.Engine
	opt Options
}

// New returns a filter on an engine. Close the engine after the last call.
func New(eng *engine.Engine, options Options) (*Filter, error) {
	switch {
	case eng == nil:
		return nil, errors.New("hapax: seen: the engine is nil: open one with engine.Open, and check its error")
	case strings.TrimSpace(options.Scope) == "" || len(options.Scope) > limits.ScopeBytes:
		return nil, fmt.Errorf("hapax: seen: Options.Scope is %q: give a name of at most %d bytes that is not blank", options.Scope, limits.ScopeBytes)
	case options.Window != 0 && options.Window < time.Millisecond:
		return nil, fmt.Errorf("hapax: seen: Options.Window is %v: give at least 1ms, or 0", options.Window)
	}
	if err := options.Identify.Validate(); err != nil {
		return nil, err
	}
	ev := engine.Event{Scope: options.Scope, ID: []byte("w"), Window: options.Window, Origin: engine.Origin{Topic: "-"}}
	if ev.Window == 0 {
		ev.Time = time.Now()
	}
	if err := eng.CheckEvent(ev); err != nil {
		return nil, fmt.Errorf("hapax: seen: Options.Window: %w", err)
	}
	return &Filter{eng, options}, nil
}

// A Claim is the result for one record.
type Claim struct {
	Record *kgo.Record

	// Result has the verdict: Claimed for a record that was not seen before, Duplicate for one that
	// was, with the position of the first sighting in Result.Record.Origin. A record with another
	// verdict must be neither handled nor skipped without a decision; see [Claim.Err].
	Result engine.Result

	event engine.Event
}

// Err returns nil for Claimed and Duplicate, and otherwise the reason for the verdict. Result.Err
// is the cause if the verdict is Failed.
func (c *Claim) Err() error {
	switch c.Result.Verdict {
	case engine.Claimed, engine.Duplicate:
		return nil
	case engine.Failed:
		return fmt.Errorf("hapax: seen: record %s/%d@%d: %w", c.Record.Topic, c.Record.Partition, c.Record.Offset, c.Result.Err)
	}
	return fmt.Errorf("hapax: seen: record %s/%d@%d is %v", c.Record.Topic, c.Record.Partition, c.Record.Offset, c.Result.Verdict)
}

// rejected reports whether Options.Reject is to be called for the record.
func (c *Claim) rejected() bool {
	switch c.Result.Verdict {
	case engine.TooOld, engine.TooNew:
		return true
	case engine.Failed:
		_, bad := errors.AsType[*engine.EventError](c.Result.Err)
		return bad || c.event.ID == nil && !errors.Is(c.Result.Err, identify.ErrNoTopicID)
	}
	return false
}

// Claim claims the events of all records, in their order, and returns a result for each. A copy
// within the fetches is a Duplicate of the first. Claims are durable on return. They are also valid
// if Claim returns an error, which is that of the store or of ctx; some results are then Failed.
//
// The caller must check the errors of the fetches themselves (kgo.Fetches.Errors).
func (f *Filter) Claim(ctx context.Context, fetches kgo.Fetches) ([]Claim, error) {
	claims := make([]Claim, 0, fetches.NumRecords())
	events := make([]engine.Event, 0, cap(claims))
	fetches.EachTopic(func(t kgo.FetchTopic) {
		t.EachRecord(func(r *kgo.Record) {
			c := Claim{Record: r}
			var err error
			if c.event, err = f.identify(r, t.TopicID); err != nil {
				c.Result = engine.Result{Verdict: engine.Failed, Err: err}
			} else {
				events = append(events, c.event)
			}
			claims = append(claims, c)
		})
	})
	results, err := f.eng.TryClaimBatch(ctx, events)
	for i := range claims {
		if claims[i].event.ID != nil {
			claims[i].Result, results = results[0], results[1:]
		}
	}
	return claims, err
}

// identify returns the event of a record, without an id after an error. With a window it has no time.
func (f *Filter) identify(r *kgo.Record, topicID [16]byte) (engine.Event, error) {
	id, err := f.opt.Identify.Identify(r, topicID)
	switch {
	case f.opt.Window > 0 && (err == nil || errors.Is(err, identify.ErrNoTime)):
		id.Time, id.ApproximateTime = time.Time{}, false
	case err != nil:
		return engine.Event{}, err
	}
	return engine.Event{
		Scope: f.opt.Scope, ID: bytes.Clone(id.ID), Time: id.Time, ApproximateTime: id.ApproximateTime, Window: f.opt.Window, Sent: identify.Sent(r),
		Origin: engine.Origin{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset},
	}, nil
}

// Unseen claims the events of all records, and returns those that were not seen before, in their
// order. If it returns an error, it returns no record and releases the claims of the call, so that
// the same fetches can be retried. If the release fails too, the error says so: the claimed records
// are then not returned again.
//
// The error is that of the store, or of a record that is neither new nor a duplicate, such as one
// that a transaction holds, or one that cannot be judged if Options.Reject is nil.
func (f *Filter) Unseen(ctx context.Context, fetches kgo.Fetches) ([]*kgo.Record, error) {
	claims, err := f.Claim(ctx, fetches)
	fresh := make([]*kgo.Record, 0, len(claims))
	var rejected []Claim
	for i := range claims {
		c := &claims[i]
		switch {
		case c.Result.IsClaimed():
			fresh = append(fresh, c.Record)
		case f.opt.Reject != nil && c.rejected():
			rejected = append(rejected, *c)
		case err == nil:
			err = c.Err()
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Release(context.WithoutCancel(ctx), claims))
	}
	for _, c := range rejected {
		f.opt.Reject(c)
	}
	return fresh, nil
}

// releaseTogether is the number of claims that one transaction releases.
const releaseTogether = 4096

// Release withdraws those of the claims that are Claimed, durably on return, so that their events
// can be claimed again: use it for records that were not handled. Claims that no longer exist are
// ignored. Release each claim once: after that, the event may belong to another caller, whose claim
// on the same record in the same millisecond looks the same.
func (f *Filter) Release(ctx context.Context, claims []Claim) error {
	for len(claims) > 0 {
		n := min(len(claims), releaseTogether)
		err := f.eng.Update(ctx, func(tx *engine.Tx) error {
			for i := range claims[:n] {
				if !claims[i].Result.IsClaimed() {
					continue
				}
				if err := driver.Unclaim(tx, claims[i].event, claims[i].Result.Record); err != nil && !errors.Is(err, engine.ErrNotClaimed) {
					return err
				}
			}
			return nil
		}, engine.Retries(100))
		if err != nil {
			return fmt.Errorf("hapax: seen: %d claims could not be released, their records are not returned again: %w", len(claims), err)
		}
		claims = claims[n:]
	}
	return nil
}
