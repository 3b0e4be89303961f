package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A week is named by its Monday.
type week struct{ weekbucket.Week }

// UnmarshalText implements encoding.TextUnmarshaler.
func (w *week) UnmarshalText(text []byte) (err error) {
	w.Week, err = weekbucket.Parse(string(text))
	return err
}

// A claimRow is a claim on an id, as the commands print it.
type claimRow struct {
	ID         id        `json:"id"`
	Week       string    `json:"week"`
	State      string    `json:"state"`
	Topic      string    `json:"topic"`
	Partition  int32     `json:"partition"`
	Offset     int64     `json:"offset"`
	FirstSeen  time.Time `json:"first_seen"`
	Generation uint64    `json:"generation"`
	Expires    time.Time `json:"expires,omitzero"`
	LeaseEnd   time.Time `json:"lease_end,omitzero"`
}

func newClaimRow(id id, week weekbucket.Week, rec *engine.ClaimRecord) claimRow {
	return claimRow{
		ID: id, Week: week.String(), State: rec.State.String(), Topic: rec.Origin.Topic, Partition: rec.Origin.Partition, Offset: rec.Origin.Offset,
		FirstSeen: rec.FirstSeen, Generation: rec.Generation, Expires: rec.Expires(), LeaseEnd: rec.LeaseEnd,
	}
}

type lookupCmd struct {
	eventID `embed:""`
	Time    time.Time `help:"Time of the event, such as 2026-03-04T12:00:00Z. Without it, all retained weeks are read."`
}

// Run implements the command.
func (c *lookupCmd) Run(ctx context.Context, out *output, f *files) error {
	id, err := c.bytes()
	if err != nil {
		return err
	}
	return f.read(func(r *engine.Reader) error {
		found, err := claimsOn(ctx, r, c.Scope, id, c.Time)
		if err != nil && len(found) == 0 {
			return err
		}
		list := rows[claimRow](out)
		for i := range found {
			list.add(newClaimRow(id, found[i].Week, &found[i].Record))
		}
		list.end()
		if err == nil && len(found) == 0 {
			err = notWanted("no claim was found in the retained weeks, the oldest of which is " + weekText(r.OldestWeek()))
		}
		return err
	})
}

// claimsOn returns the claims on an id at a time, or in all retained weeks if it is zero.
func claimsOn(ctx context.Context, r *engine.Reader, scope string, id []byte, at time.Time) ([]engine.WeekClaim, error) {
	if at.IsZero() {
		return r.LookupAll(ctx, scope, id)
	}
	rec, found, err := r.Lookup(ctx, scope, id, at)
	if err != nil || !found {
		return nil, err
	}
	week, err := weekbucket.Of(at)
	return []engine.WeekClaim{{Week: week, Record: rec}}, err
}

// weekText is the name of a retained week, "-" if no week was ever dropped or set.
func weekText(w weekbucket.Week) string {
	if w == weekbucket.Min {
		return "-"
	}
	return w.String()
}

type claimsCmd struct {
	Scope string `help:"Scope of the claims." required:""`
	Week  week   `help:"Week of the claims: the date of its Monday." required:"" placeholder:"DATE"`
	After string `help:"List the claims after this id."`
	Limit int    `help:"List at most so many. 0 = all."`
}

// Run implements the command.
func (c *claimsCmd) Run(ctx context.Context, out *output, f *files) error {
	return f.read(func(r *engine.Reader) error {
		list, n := rows[claimRow](out), 0
		defer list.end()
		for claim, err := range r.Claims(ctx, storage.Bucket{Scope: c.Scope, Week: c.Week.Week}, []byte(c.After)) {
			if err != nil {
				return err
			}
			list.add(newClaimRow(claim.ID, c.Week.Week, &claim.Record))
			if n++; n == c.Limit {
				break
			}
		}
		return nil
	})
}

type weekRow struct {
	Week   string `json:"week"`
	Scope  string `json:"scope"`
	Claims uint64 `json:"claims"`
	Bytes  uint64 `json:"bytes"`
}

type weeksCmd struct{}

// Run implements the command.
func (c *weeksCmd) Run(ctx context.Context, out *output, f *files) error {
	return f.read(func(r *engine.Reader) error {
		weeks, err := r.Weeks(ctx)
		if err != nil && weeks == nil {
			return err
		}
		list := rows[weekRow](out)
		for _, w := range weeks {
			for _, s := range w.Scopes {
				list.add(weekRow{w.Week.String(), s.Scope, s.Claims, s.Bytes})
			}
		}
		list.end()
		return err
	})
}

type scopeRow struct {
	Scope  string   `json:"scope"`
	Oldest string   `json:"oldest"`
	Weeks  []string `json:"weeks"`
}

type scopesCmd struct{}

// Run implements the command.
func (c *scopesCmd) Run(ctx context.Context, out *output, f *files) error {
	return f.read(func(r *engine.Reader) error {
		scopes, err := r.Scopes(ctx)
		if err != nil && scopes == nil {
			return err
		}
		list := rows[scopeRow](out)
		for _, s := range scopes {
			list.add(scopeRow{s.Scope, weekText(s.Oldest), weekTexts(s.Weeks)})
		}
		list.end()
		return err
	})
}

func weekTexts(weeks []weekbucket.Week) []string {
	texts := make([]string, len(weeks))
	for i, w := range weeks {
		texts[i] = w.String()
	}
	return texts
}

type holdRow struct {
	Name string    `json:"name"`
	At   time.Time `json:"at"`
}

type holdsCmd struct{}

// Run implements the command.
func (c *holdsCmd) Run(out *output, f *files) error {
	return f.read(func(r *engine.Reader) error {
		list := rows[holdRow](out)
		for _, h := range r.Holds() {
			list.add(holdRow{h.Name, h.At})
		}
		list.end()
		return nil
	})
}

type offsetRow struct {
	Group       string `json:"group"`
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	Next        int64  `json:"next"`
	LeaderEpoch int32  `json:"leader_epoch"`
	TopicID     string `json:"topic_id"`
}

type offsetsCmd struct {
	Group string `help:"Consumer group. Without it, all."`
}

// Run implements the command.
func (c *offsetsCmd) Run(ctx context.Context, out *output, f *files) error {
	return f.read(func(r *engine.Reader) error {
		list, err := offsetRows(ctx, r, c.Group)
		if err != nil {
			return err
		}
		printed := rows[offsetRow](out)
		for _, o := range list {
			printed.add(o)
		}
		printed.end()
		return nil
	})
}

// offsetRows returns the offsets, sorted.
func offsetRows(ctx context.Context, r *engine.Reader, group string) (list []offsetRow, err error) {
	offsets, err := r.Offsets(ctx, group)
	for p, o := range offsets {
		row := offsetRow{Group: p.Group, Topic: p.Topic, Partition: p.Partition, Next: o.Next, LeaderEpoch: o.LeaderEpoch}
		if o.TopicID != [16]byte{} {
			row.TopicID = hex.EncodeToString(o.TopicID[:])
		}
		list = append(list, row)
	}
	slices.SortFunc(list, func(a, b offsetRow) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return list, err
}

type messageRow struct {
	State     string    `json:"state"`
	ID        id        `json:"id"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Key       id        `json:"key"`
	Bytes     int       `json:"bytes"`
	Produced  time.Time `json:"produced"`
	Due       time.Time `json:"due"`
	Attempts  uint64    `json:"attempts"`
	LastError string    `json:"last_error"`
}

type outboxListCmd struct {
	State string `help:"List only messages in this state: ${enum}." enum:"ready,delayed,held,parked,all" default:"all"`
}

// Run implements the command.
func (c *outboxListCmd) Run(ctx context.Context, out *output, f *files) error {
	return f.read(func(r *engine.Reader) error {
		list := rows[messageRow](out)
		defer list.end()
		for m, err := range r.Outbox(ctx) {
			if err != nil {
				return err
			}
			if c.State == "all" || c.State == m.State {
				list.add(messageRow{m.State, id(m.ID), m.Topic, m.Partition, m.Key, len(m.Value), m.Produced, m.Due, m.Attempts, m.LastError})
			}
		}
		return nil
	})
}

type statusRow struct {
	Store       string   `json:"store"`
	Kind        string   `json:"kind"`
	UUID        string   `json:"uuid"`
	Incarnation uint64   `json:"incarnation"`
	OldestWeek  string   `json:"oldest_week"`
	Scopes      int      `json:"scopes"`
	Weeks       []string `json:"weeks"`
	Holds       int      `json:"holds"`
	Offsets     int      `json:"offsets"`
	OutboxBytes uint64   `json:"outbox_bytes"`
	DiskBytes   uint64   `json:"disk_bytes"`
	Damaged     []string `json:"damaged"`
}

type statusCmd struct{}

// Run implements the command.
func (c *statusCmd) Run(ctx context.Context, out *output, f *files) error {
	kind, err := f.kind()
	if err != nil {
		return err
	}
	return f.read(func(r *engine.Reader) error {
		s, err := statusOf(ctx, r, kind)
		s.Store = f.dir
		if err == nil || errors.As(err, new(*storage.DamageError)) {
			out.object(s)
		}
		return err
	})
}

func statusOf(ctx context.Context, r *engine.Reader, kind sidecar.Kind) (s statusRow, err error) {
	scopes, damage := r.Scopes(ctx)
	if damage != nil && !errors.As(damage, new(*storage.DamageError)) {
		return s, damage
	}
	offsets, err := r.Offsets(ctx, "")
	if err != nil {
		return s, err
	}
	u, err := r.Usage()
	if err != nil {
		return s, err
	}
	identity := r.Identity()
	s = statusRow{
		Kind: kind.Name, UUID: fmt.Sprintf("%x-%x-%x-%x-%x", identity.UUID[:4], identity.UUID[4:6], identity.UUID[6:8], identity.UUID[8:10], identity.UUID[10:]),
		Incarnation: identity.Incarnation, OldestWeek: weekText(r.OldestWeek()), Scopes: len(scopes), Holds: len(r.Holds()),
		Offsets: len(offsets), OutboxBytes: r.OutboxBytes(), DiskBytes: u.DiskBytes, Damaged: []string{},
	}
	var weeks []weekbucket.Week
	for _, scope := range scopes {
		weeks = append(weeks, scope.Weeks...)
	}
	slices.Sort(weeks)
	s.Weeks = weekTexts(slices.Compact(weeks))
	for i := range u.Damaged {
		s.Damaged = append(s.Damaged, u.Damaged[i].String())
	}
	return s, damage
}

type verifyRow struct {
	Claims   uint64   `json:"claims"`
	Problems int      `json:"problems"`
	First    []string `json:"first_problems"`
}

type verifyCmd struct{}

// Run implements the command.
func (c *verifyCmd) Run(ctx context.Context, out *output, f *files) error {
	return f.read(func(r *engine.Reader) error {
		report, err := r.Verify(ctx)
		if err != nil {
			return err
		}
		if report.Problems == nil {
			report.Problems = []string{}
		}
		out.object(verifyRow{report.Claims, report.Total, report.Problems})
		if report.Total > 0 {
			return notWanted("the store is damaged: see docs/stores.md#damage")
		}
		return nil
	})
}
