package kafkaadapter

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/untrusted"
	"github.com/hapax-dev/hapax/telemetry"
)

// A note is a log message about a record, logged when the batch has committed.
type note struct {
	rec     *kgo.Record
	event   engine.Event
	verdict engine.Verdict
	record  engine.ClaimRecord
	err     error
	policy  string
}

// text says what happened to the record.
func (n *note) text() string {
	switch {
	case n.policy == "own_id":
		return "the headers of a dead letter are not accepted; the record is judged by its own id"
	case n.verdict == engine.Duplicate:
		return "duplicate skipped"
	case n.policy == "retry":
		return "handling failed; the record is retried"
	case n.policy == "give_up":
		return "handling failed, and is not tried again; the record becomes a dead letter"
	case n.policy == "dead_letter":
		return "record became a dead letter"
	case n.policy == "process":
		return "record handled without a claim"
	}
	return "rejected"
}

// logNotes logs the results of a committed batch: the first records one by one, the others
// together, with one line for each result.
func logNotes(ctx context.Context, log *slog.Logger, o *telemetry.Options, notes []note) {
	var more []summary
	for i := range notes {
		n := &notes[i]
		switch {
		case n.verdict == engine.Duplicate && n.policy == "":
			n.log(ctx, log, o, slog.LevelDebug)
		case i < maxNotes:
			n.log(ctx, log, o, slog.LevelWarn)
		default:
			more = addTo(more, n)
		}
	}
	for i := range more {
		s := &more[i]
		log.Warn("more records of the batch: "+s.first.text(), "verdict", s.first.verdict.String(), "records", s.records, "offsets", s.offsets(),
			o.IDs.Attr("first_id", string(s.first.event.ID)), o.IDs.Attr("last_id", string(s.last.event.ID)))
	}
}

func (n *note) log(ctx context.Context, log *slog.Logger, o *telemetry.Options, level slog.Level) {
	if !log.Enabled(ctx, level) {
		return
	}
	args := []any{"offset", n.rec.Offset, o.IDs.Attr("id", string(n.event.ID)), "time", n.event.Time}
	if n.verdict == engine.Duplicate && n.policy == "" {
		args = append(args, "first_seen", n.record.FirstSeen, "first_origin", n.record.Origin.String(), "state", n.record.State.String())
	} else {
		args = append(args, "verdict", n.verdict.String())
	}
	if n.err != nil {
		args = append(args, "error", n.err)
		if panicked := (*PanicError)(nil); errors.As(n.err, &panicked) {
			args = append(args, "stack", untrusted.Lines(panicked.Stack))
		}
	}
	log.Log(ctx, level, n.text(), args...)
}

// maxNotes is the maximum number of records of one batch that are logged one by one.
const maxNotes = 16

// A summary has the records of a batch with the same result.
type summary struct {
	first, last *note
	records     int
	ranges      []offsetRange // in order; each record is in one of them
}

// An offsetRange has the first and the last of some offsets.
type offsetRange struct{ first, last int64 }

// maxRanges is the maximum number of ranges in one line. If there are more, the last range also
// includes offsets of other records.
const maxRanges = 64

func addTo(all []summary, n *note) []summary {
	i := slices.IndexFunc(all, func(s summary) bool { return s.first.policy == n.policy && s.first.verdict == n.verdict })
	if i < 0 {
		i, all = len(all), append(all, summary{first: n})
	}
	s, at := &all[i], n.rec.Offset
	s.last = n
	s.records++
	if k := len(s.ranges); k > 0 && (s.ranges[k-1].last == at-1 || k == maxRanges) {
		s.ranges[k-1].last = at
	} else {
		s.ranges = append(s.ranges, offsetRange{at, at})
	}
	return all
}

// offsets returns the ranges as in 5-7,9.
func (s *summary) offsets() string {
	var b strings.Builder
	for i, r := range s.ranges {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(r.first, 10))
		if r.last > r.first {
			b.WriteString("-" + strconv.FormatInt(r.last, 10))
		}
	}
	return b.String()
}

// notePositions logs once for each topic that records of it have no id, unless the route asks for
// none.
func notePositions(p *partition) {
	rules := &p.route.Identify
	if rules.Payload == nil && rules.IDHeaders != nil && len(rules.IDHeaders) == 0 {
		return
	}
	if _, noted := p.c.positions.LoadOrStore(p.pos.Topic, true); !noted {
		p.log.Warn("records have no id, and their position identifies them: a copy that the producer sends again is handled again",
			"hint", "set Route.Identify so that it finds the id, or Rules.IDHeaders to an empty list if positions are meant")
	}
}
