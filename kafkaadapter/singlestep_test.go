package kafkaadapter

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
)

// died leaves the store as an owner of the partition that died leaves it.
func (r *rig) died(t *testing.T, partition int32) {
	t.Helper()
	err := r.eng.Update(context.Background(), func(tx *engine.Tx) error {
		return own(tx).Put(partitionKey(keyOwner, r.position(partition)), encodeOwner(owner.Record{Token: [16]byte{1}, Width: firstWidth}))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// rounds returns how many batches a member has made, empty ones included.
func (m *member) rounds(t *testing.T, topic string) uint64 {
	t.Helper()
	var out dto.Metric
	if err := m.shared.m.batchSize.WithLabelValues(topic).(prometheus.Histogram).Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetHistogram().GetSampleCount()
}

func TestAttemptThatDidNotBeginDoesNotCount(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "c")
	r.died(t, 0)
	started := make(chan *member, 1)
	m := r.start(t, r.work(1, func(context.Context, *engine.Tx, *Record) error {
		m := <-started
		p := m.parts.get(topicPartition{r.topic, 0})
		m.cancel()
		<-p.ending.Done() // from here on no other record begins
		return nil
	}))
	started <- m
	kafkatest.Receive(t, m.done)
	if a := r.attemptsAt(t, 0); a != (owner.Attempts{}) {
		t.Errorf("attempts %+v are stored for a record whose handler never ran", a)
	}
	r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 3)
	r.checkOnce(t, "a", "b", "c")
	if n := r.letterCount(t); n != 0 {
		t.Errorf("%d dead letters of handlers that never failed", n)
	}
}

func TestWaitingForAnotherTransactionIsNoAttempt(t *testing.T) {
	r := newRig(t, 1)
	r.died(t, 0)
	held, let, done := make(chan struct{}), make(chan struct{}), make(chan error)
	r.send(t, 0, "a")
	at := kafkatest.Consume(t, r.Client(t, kgoFrom(r.topic)...), 1)[0].Timestamp
	go func() {
		done <- r.eng.Update(context.Background(), func(tx *engine.Tx) error {
			res, err := tx.TryClaim(engine.Event{Scope: r.group, ID: []byte("a"), Time: at, Origin: engine.Origin{Topic: "elsewhere"}})
			if err != nil || res.Verdict != engine.Claimed {
				t.Errorf("the other transaction: %v, %v", res.Verdict, err)
			}
			close(held)
			<-let
			return errHandler
		})
	}()
	kafkatest.Receive(t, held)
	m := r.start(t, r.work(3, nil))
	kafkatest.Until(t, "some rounds", func() bool { return m.rounds(t, r.topic) >= 8 })
	close(let)
	if err := kafkatest.Receive(t, done); !errors.Is(err, errHandler) {
		t.Fatal(err)
	}
	r.untilStored(t, 0, 1)
	r.checkOnce(t, "a")
	if runs := r.handled(); len(runs) != 1 || runs[0].attempt != 1 {
		t.Errorf("handled as %+v, want one first attempt", runs)
	}
}

// After a crash, as many records are handled one by one as the stored owner says: that is never less
// than what a batch contains, so that the record that killed the process is among them.
func TestNoBatchIsLargerThanTheStoreSays(t *testing.T) {
	r := newRig(t, 1)
	ids := numbered("a", 20*firstWidth)
	r.send(t, 0, ids...)
	largest := 0
	mode, _ := r.groups(1, nil)
	handle := mode.HandleBatch
	mode.HandleBatch = func(ctx context.Context, tx *engine.Tx, recs []*Record) error {
		o, err := parseOwner(r.get(t, partitionKey(keyOwner, r.position(0))))
		if err != nil || int(o.Width) < len(recs) {
			t.Errorf("a batch contains %d records, the store says at most %d, %v", len(recs), o.Width, err)
		}
		largest = max(largest, len(recs))
		return handle(ctx, tx, recs)
	}
	m := r.start(t, mode, func(o *Options) { o.batchTime = time.Minute }) // batches grow also on a slow machine
	r.untilStored(t, 0, int64(len(ids)))
	m.stop(t)
	if largest <= firstWidth {
		t.Errorf("the largest batch contained %d records", largest)
	}
}

func kgoFrom(topic string) []kgo.Opt {
	return []kgo.Opt{kgo.ConsumeTopics(topic), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart())}
}
