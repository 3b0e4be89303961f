package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storetest"
)

var errUndone = errors.New("undone")

// BenchmarkJudge judges one batch of new events with a handler that does nothing, again and again: what it claims is undone
// before it commits, so that the store has no part in it.
func BenchmarkJudge(b *testing.B) {
	eng, err := engine.Open(storetest.NewMem(engine.Identity{}), engine.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer eng.Close()
	mode := WithWork{
		MaxAttempts: 1, DeadLetters: &DeadLetters{},
		Handle: func(context.Context, *engine.Tx, *Record) error { return nil },
	}
	c, err := New(eng, mode, Options{Group: "g", Topics: []string{"t"}, Scope: "s", Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}})
	if err != nil {
		b.Fatal(err)
	}
	v := &view{topic: "t", end: math.MaxInt64}
	p := newPartition(c, v)
	defer p.cancel(nil)
	if err := eng.Update(b.Context(), func(tx *engine.Tx) error { return p.takeOver(tx, v, beginning{epoch: -1}) }); err != nil {
		b.Fatal(err)
	}
	recs := make([]*kgo.Record, DefaultMaxBatch)
	for i := range recs {
		recs[i] = &kgo.Record{Topic: "t", Offset: int64(i), Value: make([]byte, 200), Headers: []kgo.RecordHeader{
			{Key: "id", Value: []byte(uuid.NewString())},
			{Key: "event_time", Value: time.Now().UTC().AppendFormat(nil, time.RFC3339Nano)},
		}}
	}
	b.ReportAllocs()
	for b.Loop() {
		err := eng.Update(b.Context(), func(tx *engine.Tx) error {
			o := &outcome{p: p, tx: tx, epoch: -1, began: time.Now(), low: math.MaxInt64}
			if err := o.judge(recs, nil); err != nil {
				return err
			}
			if o.done != len(recs) || o.verdicts[engine.Claimed] != len(recs) {
				return fmt.Errorf("%d records are done, %d claimed", o.done, o.verdicts[engine.Claimed])
			}
			return errUndone
		})
		if !errors.Is(err, errUndone) {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(recs)), "ns/record")
}
