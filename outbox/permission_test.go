package outbox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// deny lets the broker refuse transactions with a topic to which the relay may not write, as those
// before Kafka 4.0 do: all partitions that a transaction adds at once.
func deny(t *testing.T, b *kafkatest.Broker, denied string) {
	c := b.Cluster(t)
	c.ControlKey(int16(kmsg.AddPartitionsToTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		answer, refused := req.ResponseKind().(*kmsg.AddPartitionsToTxnResponse), false
		for _, asked := range req.(*kmsg.AddPartitionsToTxnRequest).Topics {
			topic := kmsg.NewAddPartitionsToTxnResponseTopic()
			topic.Topic = asked.Topic
			for _, number := range asked.Partitions {
				p := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
				p.Partition, p.ErrorCode = number, kerr.OperationNotAttempted.Code
				if asked.Topic == denied {
					p.ErrorCode, refused = kerr.TopicAuthorizationFailed.Code, true
				}
				topic.Partitions = append(topic.Partitions, p)
			}
			answer.Topics = append(answer.Topics, topic)
		}
		return answer, nil, refused
	})
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		answer := req.ResponseKind().(*kmsg.MetadataResponse)
		for _, asked := range req.(*kmsg.MetadataRequest).Topics {
			topic := kmsg.NewMetadataResponseTopic()
			topic.Topic, topic.AuthorizedOperations = asked.Topic, 1<<kmsg.ACLOperationDescribe
			if asked.Topic != nil && *asked.Topic != denied {
				topic.AuthorizedOperations |= 1 << kmsg.ACLOperationWrite
			}
			answer.Topics = append(answer.Topics, topic)
		}
		return answer, nil, req.(*kmsg.MetadataRequest).IncludeTopicAuthorizedOperations
	})
}

// The client reports the error of one topic for all messages of the transaction, and begins no other.
func TestTopicWithoutPermissionStopsNoOthersExactlyOnce(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	o := modes(t, b)["exactly once"]
	r := newRig(t)
	o.Clock, o.Retry = r.clock, Retry{Min: time.Second, Max: time.Second, Attempts: 3}
	o.Client = append(o.Client, kgo.MaxVersions(kversion.V3_6_0()))
	topic, denied := b.CreateTopic(t, 3, nil), b.CreateTopic(t, 1, nil)
	deny(t, b, denied)
	relay, err := New(r.eng, o)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{connection: connection{shared: relay.shared}, queue: newQueue(relay.shared)}
	t.Cleanup(func() {
		s.connection.abandon()
		s.connection.shared.closing.Wait()
	})
	if _, err := s.connection.shared.lease.take(ctx, r.eng); err != nil {
		t.Fatal(err)
	}
	if err := s.load(ctx); err != nil {
		t.Fatal(err)
	}
	const rounds, each = 8, 20
	for n := range rounds {
		if err := r.eng.Update(ctx, func(tx *engine.Tx) error {
			_, err := tx.Produce(engine.Message{ID: fmt.Sprint("denied", n), Topic: denied})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		produceN(t, r.eng, topic, n*each, (n+1)*each)
		for range 2 {
			r.step(s)
		}
		r.clock.advance(2 * time.Second)
	}
	if lost, doubled := tally(rounds*each, readIDs(t, b, topic)); lost > 3*each || doubled != 0 {
		t.Errorf("%d of %d messages of the other topic are not published, %d are doubled", lost, rounds*each, doubled)
	}
	parked := parkedIDs(t, relay)
	for _, id := range parked {
		if !strings.HasPrefix(id, "denied") {
			t.Errorf("%s is parked", id)
		}
	}
	if len(parked) == 0 {
		t.Error("no message to the topic without permission is parked")
	}
}
