package kafkaadapter

import (
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// The mark in Kafka's commit (resume.OpenMark) says which records may be claimed in the store but not
// handled, because the outcome of their batch is unknown.

// takeMark takes the mark from the group's commit: AtMostOnce handles the records below it without
// claims.
func (r *partitionState) takeMark(committed *brokers.Commit) {
	if !r.partition.route.transactional() && committed != nil && !r.partition.store.exists() {
		r.uncertain = resume.ParseOpenMark(committed.Metadata).Until
	}
}

// markUncertain records that a batch of unknown outcome ends at an offset. With a changelog, restoring the
// store shows the outcome.
func markUncertain(w *worker, next int64) {
	if !w.partition.store.exists() {
		w.state.uncertain = next
		w.partition.markUncertain(next)
	}
}

// mayClaim reports whether the store is available, and all records are handled that a batch of
// unknown outcome may have claimed: a claim would skip them.
func (r *partitionState) mayClaim() bool {
	at, known := r.partition.offsets.position()
	return !r.partition.links.areAway() && (!known || at.Offset >= r.uncertain)
}

// isOutdated reports whether the partition uses an earlier store than the current one.
func (r *partitionState) isOutdated() bool {
	if r.partition.c.opt.ReopenStore == nil && !r.partition.open.Load() {
		return false
	}
	l, _ := r.partition.links.get()
	return (r.partition.open.Load() || r.partition.link.Load() != l) && r.mayClaim()
}

// settle determines the outcome of a batch of unknown outcome once the store is available: the
// store has the batch's offset if it has its claims.
func (r *partitionState) settle() error {
	if r.partition.links.areAway() {
		return nil
	}
	l, _ := r.partition.links.get()
	r.attach(l)
	o, found, err := l.eng.Admin().Offset(r.partition.ending, r.partition.pos)
	switch {
	case err != nil:
		return err
	case !found || o.Next < r.uncertain:
		r.uncertain, r.inStore = 0, 0
	default:
		r.inStore = r.uncertain
	}
	return nil
}
