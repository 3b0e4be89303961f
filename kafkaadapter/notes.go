package kafkaadapter

import (
	"context"
	"errors"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/untrusted"
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

// logNotes logs the results of a committed batch for its records.
func logNotes(ctx context.Context, log *slog.Logger, o *Telemetry, notes []note, next int64) {
	left := 0 // not logged one by one
	for i := range notes {
		n := &notes[i]
		if i >= maxNotes && (n.verdict != engine.Duplicate || n.policy != "") {
			left++
			continue
		}
		level, text := slog.LevelWarn, ""
		switch {
		case n.policy == "own_id":
			text = "the headers of a dead letter are not accepted; the record is judged by its own id"
		case n.verdict == engine.Duplicate:
			level, text = o.DuplicateLevel.Level(), "duplicate skipped"
		case n.policy == "retry":
			text = "handling failed; the record is retried"
		case n.policy == "dead_letter":
			text = "record became a dead letter"
		case n.policy == "process":
			text = "record handled without a claim"
		default:
			text = "rejected"
		}
		if !log.Enabled(ctx, level) {
			continue
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
		log.Log(ctx, level, text, args...)
	}
	if left > 0 {
		log.Warn("more records of the batch became dead letters or were rejected", "records", left, "next", next)
	}
}

// maxNotes is the maximum number of records of one batch that are logged one by one.
const maxNotes = 16
