package kafkaadapter

import (
	"fmt"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// maxLetterBytes is the number of bytes of dead letters at which a batch ends.
const maxLetterBytes = 1 << 20

// maxStoredLetter is the maximum size of a dead letter in its own batch. The rest of the
// transaction is for the claim, the offset and the adapter's own keys.
const maxStoredLetter = limits.TxBytes - 1<<20

// deadLetter turns a record into a dead letter. The dead letter, the claim marked as dead-lettered,
// and the next offset commit in one batch. The next batch begins when the broker has acknowledged
// all dead letters of this one.
func (b *batch) deadLetter(r *delivery, why deadletter.Reason, cause error, claimed bool) error {
	f := deadletter.Failure{Reason: why, Err: cause, Attempts: b.attemptsAt(r.Record), Event: r.identity(), Claimed: claimed}
	if claimed {
		rec, err := as(b.tx).DeadLetter(judged(r.Event, isClaimed(r.replay)))
		if err != nil {
			return err
		}
		f.Generation, f.Event = rec.Generation, lettered(f.Event, &rec)
	}
	o := b.p.partition.route.DeadLetters
	letter := b.p.issuer.Letter(r.Record, r.replay, f, o.Headers)
	if b.p.large.is(r.Record) {
		letter = deadletter.WithoutRecord(b.p.issuer.Letter(b.p.large.first, nil, f, o.Headers))
	}
	new(buffer).keep(letter) // it outlasts the records of the batch
	if !o.StopTooLarge {
		letter = deadletter.Shorten(letter, maxStoredLetter)
	}
	if n := deadletter.Size(letter); n > maxStoredLetter {
		return fmt.Errorf("%w: %d bytes at offset %d, but a transaction of the store has room for %d: remove deadletter.Options.StopTooLarge", deadletter.ErrTooLarge, n, r.Record.Offset, maxStoredLetter)
	}
	b.result.letters, b.result.letterAt = append(b.result.letters, letter), append(b.result.letterAt, r.Record.Offset)
	b.result.letterBytes += deadletter.Size(letter)
	b.notes = append(b.notes, note{rec: r.Record, event: r.Event, verdict: r.Verdict, err: cause, policy: "dead_letter"})
	return nil
}
