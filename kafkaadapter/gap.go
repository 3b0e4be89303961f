package kafkaadapter

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
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
	l := newLargeBatch(e, w.partition.c.opt.Batching.MaxBufferedBytes)
	aborted, err := isAborted(w, e.Offset)
	switch {
	case err != nil && w.partition.isEnding():
		return ended
	case err != nil:
		w.drop(err)
		return w.state.stopForNow("fetch_error", err, lookingUp)
	case aborted:
		l.last.Attrs = kgo.NewRecordAttrs(kgo.RecordAttrsOpts{Control: true})
	case w.partition.route.LargeBatch != SkipLargeBatch:
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
	w.state.large, w.state.taken, w.delays = l, []*kgo.Record{l.last}, newDelays(w.partition.c.opt.Timeouts.Backoff)
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
