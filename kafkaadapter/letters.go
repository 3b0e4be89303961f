package kafkaadapter

import (
	"fmt"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// maxLetterBytes is how many bytes of dead letters a batch may have before it ends.
const maxLetterBytes = 1 << 20

// maxStoredLetter is how many bytes a letter may have that is stored alone. The rest of a
// transaction is for the claim, the offset and the adapter's own keys.
const maxStoredLetter = engine.MaxTxBytes - 1<<20

// deadLetter makes a dead letter of a record: the letter, the claim that is marked dead-lettered,
// and the next offset commit in one batch. After that batch no other begins until the broker has
// acknowledged all its letters.
func (b *batch) deadLetter(r *Record, why deadletter.Reason, cause error, claimed bool) error {
	f := deadletter.Failure{Reason: why, Err: cause, Attempts: b.attemptsAt(r.Record), Event: r.identity()}
	if claimed {
		rec, err := b.tx.DeadLetter(r.Event)
		if err != nil {
			return err
		}
		f.Generation = rec.Generation
	} else if r.replay != nil {
		f.Generation = r.replay.Generation // its claim is as it was
	}
	o := b.p.route.DeadLetters
	letter := b.p.issuer.Letter(r.Record, r.replay, f, o.Headers)
	if o.OmitTooLarge {
		letter = deadletter.Shorten(letter, maxStoredLetter)
	}
	if n := deadletter.Size(letter); n > maxStoredLetter {
		return fmt.Errorf("%w: %d bytes at offset %d; a transaction of the store has room for %d", deadletter.ErrTooLarge, n, r.Offset, maxStoredLetter)
	}
	b.letters, b.letterAt = append(b.letters, letter), append(b.letterAt, r.Offset)
	b.letterBytes += deadletter.Size(letter)
	b.notes = append(b.notes, note{rec: r.Record, event: r.Event, verdict: r.Verdict, err: cause, policy: "dead_letter"})
	return nil
}
