package kafkaadapter

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// checkEpochs checks, where the leader epoch of the fetched records rises, that the log still
// contains all records of the epoch before. After an unclean election, the new leader may have
// replaced records that were read. The client notices this, too, but its error is lost if the client
// fetches again before the poll loop takes the error, and it does not check an epoch that it has read
// no record of. checkEpochs returns running, or the state that looks the partition up again: it stops
// if the store has read further than the log had these records. Records that were fetched and not
// handled yet are read again.
func (w *worker) checkEpochs(recs []*kgo.Record) state {
	next, epoch := w.state.next, w.state.epoch
	for _, r := range recs {
		if epoch >= 0 && r.LeaderEpoch > epoch {
			switch end, err := w.endOfEpoch(epoch); {
			case w.partition.isEnding():
				return ended
			case err != nil:
				w.drop(err)
				return w.state.stopForNow(reasonOf(err), err, lookingUp)
			case end >= 0 && end < next:
				w.partition.c.throttled(w.partition.log.Warn, "the log was rewritten; fetched records are dropped and read again, unless the store has read further", w.partition.tp(),
					"next", next, "epoch", epoch, "epoch_end", end)
				w.drop(ErrLogDiverged)
				if !w.partition.wait(w.state.retries.NextBackOff()) {
					return ended
				}
				return lookingUp
			}
		}
		next, epoch = max(next, r.Offset+1), r.LeaderEpoch
	}
	return running
}

// endOfEpoch asks the leader for the end of an epoch. It retries transient errors for a while: the
// epoch rises when leaders move.
func (w *worker) endOfEpoch(epoch int32) (end int64, err error) {
	ctx, ask, tp := w.partition.ending, w.partition.c.brokers.ask, w.partition.tp()
	err = brokers.Retry(ctx, func() error {
		topic, err := ask.Topic(ctx, tp.topic)
		if err != nil {
			return err
		}
		log, err := ask.Log(ctx, topic, tp.asked(), epoch)
		end = log.EpochEnd
		return err
	}, func(error) bool { return false })
	return end, err
}

// checkShape makes sure that no partition was added before the records in the queue were fetched.
func (w *worker) checkShape() state {
	if !w.partition.c.opt.Membership.dependsOnShape() || w.partition.open.Load() {
		return running
	}
	now, err := w.partition.c.brokers.ask.Topic(w.partition.ending, w.partition.pos.Topic)
	if err == nil && !(resume.Topic{ID: now.ID, Partitions: now.Partitions}).Follows(*w.partition.shape.Load()) {
		err = errShapeChanged
	}
	if err == nil {
		return running
	}
	w.drop(err)
	return lookingUp
}

// drop ends the fetching of the partition and drops the fetched records, because the partition must
// be looked up again.
func (w *worker) drop(cause error) {
	w.partition.all.pause(w.partition)
	w.partition.queue.Close()
	w.state.cause = cause
}
