package kafkaadapter

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// impatient shortens the limits for silence and lag.
func impatient(o *Options) {
	o.SilenceTimeout, o.lagInterval = 50*time.Millisecond, 10*time.Millisecond
}

func TestLastingErrorIsLoggedAtIntervals(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	for name, read := range map[string]bool{"a record waits": false, "all is read": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			if read {
				r.send(t, 0, "read")
				m := r.start(t, r.work(1, nil))
				r.untilStored(t, 0, 1)
				m.stop(t)
			} else {
				r.send(t, 0, "a")
			}
			h := r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: r.topic, Err: kerr.UnknownServerError, Count: -1})
			began := time.Now()
			m := r.start(t, r.work(1, nil))
			if e := m.stoppedOne(t); e.Reason != "fetch_error" || !errors.Is(e, kerr.UnknownServerError) {
				t.Errorf("stopped: %v", e)
			}
			kafkatest.Until(t, "many errors", func() bool { return m.metric(t, "fetch_errors_total") >= 50 })
			most := 5 + 2*int(time.Since(began)/logEvery)
			if n := m.logs.count("UNKNOWN_SERVER_ERROR"); n > most || len(m.stops) > most {
				t.Errorf("%d lines and %d calls of OnStop for one error:\n%s", n, len(m.stops), m.logs)
			}
			h.Remove()
			if read {
				r.send(t, 0, "a")
			}
			kafkatest.Until(t, "the record", func() bool { return r.effects(t, "a") == 1 })
			m.stop(t)
		})
	}
}

func TestThrottleCountsSuppressedMessages(t *testing.T) {
	var th throttle
	now := time.Unix(1e9, 0)
	one, other := kind{"text", topicPartition{"in", 0}}, kind{"text", topicPartition{"in", 1}}
	for i := range 5 {
		if _, ok := th.pass(one, now); ok != (i == 0) {
			t.Errorf("message %d: %v", i, ok)
		}
	}
	if n, ok := th.pass(other, now); !ok || n != 0 {
		t.Errorf("another kind: %d, %v", n, ok)
	}
	if n, ok := th.pass(one, now.Add(logEvery)); !ok || n != 4 {
		t.Errorf("later: %v, and %d were suppressed, want 4", ok, n)
	}
}

// A transaction that is never ended keeps records from being read: the lag shows this, although all
// readable records are read.
func TestHangingTransactionIsNoLagOfZero(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	c := r.Client(t, kgo.TransactionalID(kafkatest.Name(t)), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err := c.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := c.ProduceSync(t.Context(), r.event(0, "open")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r.send(t, 0, "b", "c")
	m := r.start(t, r.work(1, nil), impatient)
	r.untilStored(t, 0, 1)
	m.counts(t, 3, "lag_records")
	m.counts(t, 0, "stable_lag_records")
	if err := c.EndTransaction(context.Background(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	r.untilStored(t, 0, 5)
	kafkatest.Until(t, "no lag", func() bool { return m.metric(t, "lag_records") == 0 })
	m.stop(t)
}

func TestLagOfAStoppedPartitionGrows(t *testing.T) {
	r := consumed(t, inMemory)
	r.Commit(t, r.group, r.offset(0, 4, ""))
	m := r.start(t, r.work(1, nil), impatient)
	e := m.stoppedOne(t)
	for ; e.Reason == "silent"; e = m.stoppedOne(t) { // for a moment, on a slow machine
	}
	if !errors.Is(e, ErrOffsetReset) {
		t.Errorf("stopped: %v", e)
	}
	r.send(t, 0, numbered("c", 7)...)
	kafkatest.Until(t, "the lag to be reported", func() bool { return m.metric(t, "lag_records", "0") == 7 })
	m.stop(t)
}

// Nothing is handled before Kafka has the store's identity. A commit that is rejected for a long
// time is reported.
func TestPartitionWhoseOffsetCannotBeCommittedIsReported(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	var refuse atomic.Bool
	refuse.Store(true)
	r.Cluster(t).ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.Cluster(t).KeepControl()
		if !refuse.Load() {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
		for _, rt := range req.(*kmsg.OffsetCommitRequest).Topics {
			st := kmsg.NewOffsetCommitResponseTopic()
			st.Topic, st.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				sp := kmsg.NewOffsetCommitResponseTopicPartition()
				sp.Partition, sp.ErrorCode = rp.Partition, kerr.TopicAuthorizationFailed.Code
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
	m := r.start(t, r.work(1, nil), func(o *Options) { o.SilenceTimeout = 50 * time.Millisecond })
	e := m.stoppedOne(t)
	if !errors.Is(e, ErrOffsetCommit) || !errors.Is(e, kerr.TopicAuthorizationFailed) || !errors.Is(m.Ready(), ErrOffsetCommit) || len(m.Stopped()) != 1 {
		t.Errorf("stopped: %v, %v, %v", e, m.Ready(), m.Stopped())
	}
	refuse.Store(false)
	r.untilStored(t, 0, 1)
	kafkatest.Until(t, "the end of the stop", func() bool { return m.Ready() == nil && len(m.Stopped()) == 0 })
	m.stop(t)
}
