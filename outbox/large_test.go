package outbox

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/entry"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/telemetry"
)

// A message above the client's usual limit is published if its topic takes it, and small messages
// are still not collected into a batch that is too large for a topic.
func TestLargeMessagesArePublishedIfTheirTopicTakesThem(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	for how, o := range modes(t, b) {
		t.Run(how, func(t *testing.T) {
			o.Batch.Time, o.Lease.TTL = 20*time.Second, time.Minute
			o.Batch.Entries, o.Retry.Attempts = 1000, 2
			large := b.CreateTopic(t, 1, map[string]string{"max.message.bytes": "4194304", "segment.bytes": "16777216"})
			middle := b.CreateTopic(t, 1, map[string]string{"max.message.bytes": "2097152", "segment.bytes": "16777216"})
			usual := b.CreateTopic(t, 1, nil)
			eng := openEngine(t, newMemDisk().open(t), nil)
			incompressible := func(n int) []byte {
				b := make([]byte, n)
				for i, x := 0, uint32(1); i < n; i++ {
					x = x*1664525 + 1013904223
					b[i] = byte(x >> 24)
				}
				return b
			}
			var all []engine.Message
			for n := range 150 {
				for _, topic := range []string{large, middle, usual} {
					all = append(all, engine.Message{ID: fmt.Sprint(topic, n), Topic: topic, Value: incompressible(20_000)})
				}
			}
			send(t, eng, all...)
			send(t, eng, engine.Message{ID: "3 MiB", Topic: large, Value: incompressible(3 << 20)}, engine.Message{ID: "1.5 MiB", Topic: middle, Value: incompressible(3 << 19)},
				engine.Message{ID: "largest", Topic: large, Value: incompressible(4<<20 - 66<<10)}, engine.Message{ID: "too large", Topic: usual, Value: incompressible(3 << 20)},
				engine.Message{ID: "too large, too", Topic: middle, Value: incompressible(3 << 20)})
			send(t, eng, all...)
			relay, stop := startRelay(t, eng, o)
			defer stop()
			until(t, "an empty outbox", func() bool { return pending(t, eng) == 0 })
			if ids := parkedIDs(t, relay); len(ids) != 2 || ids[0][:3] != "too" || ids[1][:3] != "too" {
				t.Errorf("parked %q", ids)
			}
			for topic, n := range map[string]int{large: 302, middle: 301, usual: 300} {
				seen := make(map[string]bool)
				for _, r := range b.ConsumeTopic(t, topic, n) {
					seen[idOf(r)] = true
				}
				if topic == large && (!seen["3 MiB"] || !seen["largest"]) || topic == middle && !seen["1.5 MiB"] {
					t.Error("a large message is missing")
				}
			}
		})
	}
}

// While the limit of a topic cannot be read, a large message is not rejected: it waits, and those of
// its ordering key with it.
func TestLargeMessageWaitsForTheLimitOfItsTopic(t *testing.T) {
	for name, once := range map[string]*ExactlyOnce{"at least once": nil, "exactly once": exactlyOnce} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			relay := r.relay(Options{Retry: Retry{Attempts: 2}, ExactlyOnce: once})
			known := false
			relay.shared.limits.read = func(_ context.Context, topics []string) (map[string]int32, map[string]error) {
				if known {
					return nil, nil
				}
				return nil, map[string]error{topics[0]: errDown}
			}
			r.broker.setAnswer(func(rec *kgo.Record, _ int) error {
				if len(rec.Value) > 1<<20 && !known {
					t.Error("a large message was sent without a limit")
				}
				return nil
			})
			s := r.session(relay)
			send(t, r.eng, engine.Message{ID: "large", Topic: "out", Key: []byte("k"), Value: make([]byte, 2<<20)},
				engine.Message{ID: "behind", Topic: "out", Key: []byte("k")}, engine.Message{ID: "small", Topic: "out", Key: []byte("l")})
			for range 5 {
				r.step(s)
				r.clock.advance(DefaultMaxBackoff)
			}
			wantIDs(t, r.broker.ids(), "small")
			if held := entries(t, r.eng, entry.HeldPrefix); len(held) != 2 || held[0].Attempts < 3 || held[0].Refused != 0 {
				t.Errorf("%d entries are held", len(held))
			}
			known = true
			for pending(t, r.eng) > 0 {
				r.step(s)
				r.clock.advance(DefaultMaxBackoff)
			}
			wantIDs(t, r.broker.ids(), "small", "large", "behind")
		})
	}
}

// A relay that may not read the configuration of a topic says so once, and not for each large message.
func TestLimitThatMayNotBeReadIsLoggedOnce(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	b := kafkatest.Start(t, kafkatest.Options{})
	b.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	var log bytes.Buffer
	relay, err := New(openEngine(t, newMemDisk().open(t), nil), Options{Client: b.ClientOptions(), Telemetry: telemetry.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		read, unknown := relay.shared.limits.read(t.Context(), []string{"one", "two"})
		if len(read)+len(unknown) > 0 {
			t.Errorf("read %v, %v", read, unknown)
		}
	}
	if n := strings.Count(log.String(), "permit DescribeConfigs"); n != 2 {
		t.Errorf("%d lines for two topics:\n%s", n, &log)
	}
}
