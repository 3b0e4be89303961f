package kafkaadapter

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
)

func TestConflictOfAnotherTransactionIsAFailedAttempt(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "c")
	r.start(t, r.work(2, failing(fmt.Errorf("in a separate transaction of the handler: %w", engine.ErrConflict), "b")))
	r.untilStored(t, 0, 3)
	r.checkOnce(t, "a", "c")
	r.letters(t, 1)
}

func TestFullTransactionLeavesTheRestToTheNext(t *testing.T) {
	r := newRig(t, 1)
	const n = 8
	recs := make([]*kgo.Record, 0, n+1)
	for _, id := range numbered("e", n) {
		recs = append(recs, r.event(0, id))
	}
	// its letter does not fit into the same transaction
	recs = append(recs, &kgo.Record{Topic: r.topic, Value: make([]byte, 950_000)})
	r.Produce(t, recs...)
	value := make([]byte, limits.TxBytes/n-100<<10)
	r.start(t, r.work(2, func(_ context.Context, tx *engine.Tx, rec *Record) error {
		return tx.Put([]byte("big/"+string(rec.Event.ID)), value)
	}), func(o *Options) {
		o.Routes[0].Identify.NoPosition = true
		o.batchTime = time.Hour
	})
	r.untilStored(t, 0, n+1)
	r.checkOnce(t, numbered("e", n)...)
	r.letters(t, 1)
}
