package kafkaadapter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// large returns an event with a value that exceeds the client's default limit before compression.
func (r *rig) large(id string, value []byte) *kgo.Record {
	rec := r.event(0, id)
	rec.Value = value
	return rec
}

func (r *rig) sendLarge(t *testing.T, recs ...*kgo.Record) {
	t.Helper()
	c := r.Client(t, kgo.ProducerBatchMaxBytes(64<<20), kgo.ProducerBatchCompression(kgo.ZstdCompression()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for _, rec := range recs {
		if err := c.ProduceSync(context.Background(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // Read never fails
	return b
}

func stopTooLarge(o *Options) { o.Routes[0].Policies[LargeLetter] = StopBefore }

// setLimit sets the maximum batch size of the dead-letter topic.
func (r *rig) setLimit(t *testing.T, bytes int) {
	t.Helper()
	value := strconv.Itoa(bytes)
	all, err := kadm.NewClient(r.Client(t)).AlterTopicConfigs(context.Background(),
		[]kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &value}}, r.topic+"-dlt")
	if err == nil {
		err = all[0].Err
	}
	if err != nil {
		t.Fatal(err)
	}
}

// 2 MB of zeros are a few hundred bytes in the log.
func TestLargeCompressibleRecordBecomesADeadLetter(t *testing.T) {
	r := newRig(t, 1)
	r.sendLarge(t, r.event(0, "a"), r.large("poison", make([]byte, 2<<20)), r.event(0, "b"))
	m := r.start(t, r.work(1, failing(Permanent(errHandler), "poison")))
	dead := r.letters(t, 1)[0]
	r.untilStored(t, 0, 3)
	m.stop(t)
	if len(dead.Value) != 2<<20 || deadletter.Incomplete(dead) != nil {
		t.Errorf("a letter of %d bytes, headers %v", len(dead.Value), values(dead))
	}
	r.checkOnce(t, "a", "b")
}

func TestRejectedLetterStopsItsPartitionUntilTheTopicAcceptsIt(t *testing.T) {
	r := newRig(t, 1)
	r.setLimit(t, 100_000)
	r.sendLarge(t, r.event(0, "a"), r.large("poison", noise(200_000)), r.event(0, "b"))
	m := r.start(t, r.work(1, failing(Permanent(errHandler), "poison")), stopTooLarge)
	e := m.stoppedOne(t)
	if e.Reason != "dead_letter" || !errors.Is(e, ErrDeadLetter) || !errors.Is(e, deadletter.ErrTooLarge) ||
		!strings.Contains(e.Error(), r.topic+"-dlt") || !strings.Contains(e.Error(), "max.message.bytes") {
		t.Errorf("stopped: %v", e)
	}
	if n := r.letterCount(t); n != 0 {
		t.Errorf("%d letters", n)
	}
	r.setLimit(t, 300_000)
	r.untilStored(t, 0, 3)
	dead := r.letters(t, 1)[0]
	m.stop(t)
	if len(dead.Value) != 200_000 {
		t.Errorf("a letter of %d bytes", len(dead.Value))
	}
	r.checkOnce(t, "a", "b")
}

// A letter without its value names the original record. It is no replay until the value is
// restored.
func TestRejectedLetterIsPublishedWithoutItsValue(t *testing.T) {
	for name, headers := range map[string][]kgo.RecordHeader{"id": {{Key: "message_id", Value: []byte("poison")}}, "position": nil} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.setLimit(t, 100_000)
			value := noise(200_000)
			poison := r.large("poison", value)
			poison.Headers = headers
			r.sendLarge(t, r.event(0, "a"), poison, r.event(0, "b"))
			failures := 2
			m := r.start(t, r.work(1, func(_ context.Context, _ *engine.Tx, rec *Record) error {
				if len(rec.Value) != len(value) || failures == 0 {
					return nil
				}
				failures--
				return Permanent(errHandler)
			}))
			want := map[string]string{
				"hapax_dlt_original_topic": r.topic, "hapax_dlt_original_partition": "0", "hapax_dlt_original_offset": "1",
				"hapax_dlt_omitted": "value", "hapax_dlt_omitted_bytes": "200000",
			}
			check := func(dead *kgo.Record) {
				t.Helper()
				got := values(dead)
				for name, want := range want {
					if got[name] != want {
						t.Errorf("%s is %q, want %q", name, got[name], want)
					}
				}
				if dead.Value != nil || string(dead.Key) != "key-poison" {
					t.Errorf("key %q, value of %d bytes", dead.Key, len(dead.Value))
				}
			}
			r.untilStored(t, 0, 3)
			for i := range 2 { // the first replay fails, too
				dead := r.letters(t, 2*i+1)[2*i]
				check(dead)
				calls := len(r.handled())
				r.replay(t, dead, 1)
				r.untilStored(t, 0, int64(2*i+4))
				again := r.letters(t, 2*i+2)[2*i+1]
				check(again)
				if got := values(again); got["hapax_dlt_reason"] != "undecodable" || len(r.handled()) != calls {
					t.Errorf("letter %v, handled %+v", got, r.handled()[calls:])
				}
				again.Value = value
				again.Headers = slices.DeleteFunc(again.Headers, func(h kgo.RecordHeader) bool { return h.Key == "hapax_dlt_omitted" })
				r.sendLarge(t, &kgo.Record{Topic: r.topic, Key: again.Key, Value: again.Value, Headers: again.Headers})
				r.untilStored(t, 0, int64(2*i+5))
			}
			m.stop(t)
			last := r.handled()[len(r.handled())-1]
			if failures != 0 || !last.reopened || last.offset != 6 || r.letterCount(t) != 4 {
				t.Errorf("handled %+v, %d letters", r.handled(), r.letterCount(t))
			}
		})
	}
}

// 33 MB do not fit into a transaction of the store.
func TestLetterThatDoesNotFitIntoATransaction(t *testing.T) {
	start := func(t *testing.T, change ...func(*Options)) (*rig, *member) {
		r := newRig(t, 2)
		r.sendLarge(t, r.event(0, "a"), r.large("poison", make([]byte, 33<<20)), r.event(0, "b"))
		return r, r.start(t, r.work(1, failing(Permanent(errHandler), "poison")), change...)
	}
	t.Run("stops its partition", func(t *testing.T) {
		r, m := start(t, stopTooLarge)
		if e := m.stoppedOne(t); e.Reason != "dead_letter" || !errors.Is(e, deadletter.ErrTooLarge) || !strings.Contains(e.Error(), "offset 1") {
			t.Errorf("stopped: %v", e)
		}
		r.send(t, 1, "c")
		r.untilStored(t, 1, 1)
		if n := r.stored(t, 0); n != 1 {
			t.Errorf("the store is at %d", n)
		}
		m.stop(t)
		r.checkOnce(t, "a", "c")
	})
	t.Run("the records before it commit", func(t *testing.T) {
		r := newRig(t, 1)
		old := r.dated("old", time.Now().AddDate(-1, 0, 0))
		old.Value = make([]byte, 33<<20)
		r.sendLarge(t, r.event(0, "a"), old)
		m := r.start(t, r.work(1, nil), stopTooLarge)
		if e := m.stoppedOne(t); !errors.Is(e, deadletter.ErrTooLarge) || !strings.Contains(e.Error(), "offset 1") {
			t.Errorf("stopped: %v", e)
		}
		if n := r.stored(t, 0); n != 1 {
			t.Errorf("the store is at %d", n)
		}
		m.stop(t)
		r.checkOnce(t, "a")
	})
	t.Run("is stored without its value", func(t *testing.T) {
		r, m := start(t)
		dead := r.letters(t, 1)[0]
		r.untilStored(t, 0, 3)
		m.stop(t)
		if got := values(dead); got["hapax_dlt_omitted"] != "value" || got["hapax_dlt_omitted_bytes"] != fmt.Sprint(33<<20) || got["hapax_dlt_original_offset"] != "1" {
			t.Errorf("headers %v", got)
		}
		r.checkOnce(t, "a", "b")
	})
}

func TestDeadLetterTopicIsCheckedAtTheStart(t *testing.T) {
	r := newRig(t, 1)
	r.DeleteTopic(t, r.topic+"-dlt")
	r.send(t, 0, "a")
	m := r.start(t, r.work(1, nil), func(o *Options) { o.lagInterval = 20 * time.Millisecond })
	r.untilStored(t, 0, 1)
	kafkatest.Until(t, "the missing topic", func() bool { return errors.Is(m.Ready(), deadletter.ErrTopic) })
	if err := m.Ready(); !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), r.topic+"-dlt does not exist: create it") {
		t.Error(err)
	}
	kafkatest.Until(t, "an error in the log", func() bool {
		return m.logs.has("level=ERROR msg=\"a dead-letter topic cannot be written; a partition stops at its first dead letter\"")
	})
	if len(m.Stopped()) > 0 {
		t.Errorf("stopped: %v", m.Stopped())
	}
	r.CreateNamed(t, r.topic+"-dlt", 1, nil)
	kafkatest.Until(t, "ready", func() bool { return m.Ready() == nil })
	m.stop(t)
	if n := m.logs.count("a partition stops at its first dead letter"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

// The broker reports the permitted operations on request.
func TestDeadLetterTopicMayBeWrittenTo(t *testing.T) {
	r := newRig(t, 1)
	r.Cluster(t).ControlKey(int16(kmsg.Metadata), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		r.Cluster(t).KeepControl()
		req := kreq.(*kmsg.MetadataRequest)
		if !req.IncludeTopicAuthorizedOperations {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		for _, asked := range req.Topics {
			topic := kmsg.NewMetadataResponseTopic()
			topic.Topic = asked.Topic
			topic.AuthorizedOperations = 1<<kmsg.ACLOperationDescribe | 1<<kmsg.ACLOperationRead
			resp.Topics = append(resp.Topics, topic)
		}
		return resp, nil, true
	})
	m := r.start(t, r.work(1, nil))
	kafkatest.Until(t, "the missing right", func() bool { return errors.Is(m.Ready(), deadletter.ErrTopic) })
	if err := m.Ready(); !strings.Contains(err.Error(), "Write") || !strings.Contains(err.Error(), r.topic+"-dlt") {
		t.Error(err)
	}
	m.cancel()
}
