package changelog

import (
	"context"
	"time"
)

// A seenEpoch is the epoch of the leader that has answered an append, and what was known of it then. Kafka's
// answer to an append does not say the epoch. Asking the leader after each append would be exact and costs a
// request, so it is asked only when it can have changed: when the client knows of another leader, when it has
// connected to the broker again, or when nothing was appended for a while.
type seenEpoch struct {
	epoch int32 // -1: not known
	as    leadership
	at    time.Time // of the last answer
}

// trustFor is how long an epoch is believed on an open connection between two answers of the leader.
const trustFor = time.Second

// epochOf returns the epoch of the leader, as of the answer to an append that was just received, or a later
// one.
func (l *Log) epochOf(ctx context.Context, p *producer) (int32, error) {
	now, known := time.Now(), p.leadership(l.of)
	l.mu.Lock()
	seen := l.seen
	l.mu.Unlock()
	if seen.epoch < 0 || known != seen.as || known.broker < 0 || now.Sub(seen.at) > trustFor {
		found, err := l.bounds(ctx)
		if err != nil {
			return -1, err
		}
		seen.epoch, seen.as = max(found.Epoch, known.epoch), known
	}
	seen.at = now
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = seen
	return seen.epoch, nil
}
