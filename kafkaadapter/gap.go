package kafkaadapter

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// check checks that the fetched records follow those that were handled. It returns running, or the
// state after a fault.
func (w *worker) check(recs []*kgo.Record) state {
	if next := w.checkShape(); next != running {
		return next
	}
	if next := w.checkEpochs(recs); next != running {
		return next
	}
	if err := w.explainGaps(recs); err != nil {
		return w.missing(err)
	}
	return running
}

// explainGaps checks that no record is missing before or among the fetched ones.
func (w *worker) explainGaps(recs []*kgo.Record) error {
	want := w.state.next
	for _, r := range recs {
		if r.Offset > want && !w.survey.Explains(want, r.Offset) {
			if err := w.explain(want, r.Offset); err != nil {
				return err
			}
		}
		want = max(want, r.Offset+1)
	}
	return nil
}

// explain surveys the log from one offset to another. It returns an error if there is a record
// between them.
func (w *worker) explain(from, to int64) error {
	for at := from; at < to; at = w.survey.To() {
		if err := w.surveyFrom(at); err != nil {
			return fmt.Errorf("offsets %d to %d are missing and cannot be checked: %w", from, to-1, err)
		}
		if !w.survey.Explains(at, min(to, w.survey.To())) {
			return fmt.Errorf("%w: %d to %d", ErrGap, from, to-1)
		}
	}
	return nil
}

// surveyFrom fetches the log from an offset, independently of the client's own fetches. Few
// partitions do so at a time: what they fetch and decompress is in addition to the records that the memory
// counts.
func (w *worker) surveyFrom(offset int64) error {
	select {
	case w.partition.c.surveys <- struct{}{}:
		defer func() { <-w.partition.c.surveys }()
	case <-w.partition.ending.Done():
		return context.Cause(w.partition.ending)
	}
	ctx, cancel := context.WithTimeout(w.partition.ending, brokers.Limit)
	defer cancel()
	raw, err := w.partition.c.brokers.ask.RawFetch(ctx, w.partition.tp().asked(), w.state.topicID, offset)
	if err != nil {
		return err
	}
	w.survey, err = feed.NewSurvey(raw, w.partition.pos.Topic, offset, w.partition.c.decompressor)
	return err
}

// missing stops a partition whose offsets have an unexplained gap. The next try reads it again from
// the store's offset, which repairs damage in transit.
func (w *worker) missing(err error) state {
	if w.partition.isEnding() {
		return ended
	}
	w.drop(err)
	return w.state.stopForNow("gap", err, lookingUp)
}

// passLarge stops before a batch that is too large, or takes a record in its place: the offset after
// the batch commits with its dead letter. A batch of an aborted transaction has no records, and a
// control record takes its place.
func passLarge(w *worker, e *kgo.ErrDecompressTooLarge) state {
	w.partition.queue.Close()
	l := newLargeBatch(e, w.partition.c.opt.MaxBufferedBytes)
	aborted, err := isAborted(w, e.Offset)
	switch {
	case err != nil && w.partition.isEnding():
		return ended
	case err != nil:
		w.drop(err)
		return w.state.stopForNow("fetch_error", err, lookingUp)
	case aborted:
		l.last.Attrs = kgo.NewRecordAttrs(kgo.RecordAttrsOpts{Control: true})
	case w.partition.route.Policies[LargeBatch] == StopBefore:
		return w.state.stop("large_batch", l.err)
	}
	if next := w.checkEpochs([]*kgo.Record{l.first}); next != running {
		return next
	}
	if e.Offset > w.state.next {
		if err := w.explain(w.state.next, e.Offset); err != nil {
			return w.missing(err)
		}
	}
	w.state.large, w.state.taken, w.delays = l, []*kgo.Record{l.last}, newDelays(w.partition.c.opt.backoff)
	return w.state.readState()
}

// isAborted reports whether the batch that begins at an offset belongs to an aborted transaction, by the
// rule of the client, which decompresses a batch before it applies that rule.
func isAborted(w *worker, offset int64) (bool, error) {
	ctx, cancel := context.WithTimeout(w.partition.ending, brokers.Limit)
	defer cancel()
	raw, err := w.partition.c.brokers.ask.RawFetch(ctx, w.partition.tp().asked(), w.state.topicID, offset)
	if err != nil {
		return false, err
	}
	const transactional = 1 << 4
	var batch kmsg.RecordBatch
	if err := batch.ReadFrom(raw.RecordBatches); err != nil || batch.Magic != 2 || batch.FirstOffset != offset || batch.Attributes&transactional == 0 {
		return false, nil // also records in the form before batches, which have no transactions
	}
	return slices.ContainsFunc(raw.AbortedTransactions, func(a kmsg.FetchResponseTopicPartitionAbortedTransaction) bool {
		return a.ProducerID == batch.ProducerID && a.FirstOffset <= offset
	}), nil
}

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
	if !w.partition.c.opt.dependsOnShape() || w.partition.open.Load() {
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
