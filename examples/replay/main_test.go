package main

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

func TestALetterThatIsSentBackIsHandledOnce(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic, group := b.CreateTopic(t, 1, nil), kafkatest.Name(t)
	letters := topic + "-dlt"
	b.CreateNamed(t, letters, 2, nil)
	event := func(id string) *kgo.Record {
		return &kgo.Record{Topic: topic, Key: []byte(id), Value: []byte("v" + id), Headers: []kgo.RecordHeader{{Key: "message_id", Value: []byte(id)}}}
	}
	b.Produce(t, event("1"), event("2"), event("3"), &kgo.Record{Topic: letters, Value: []byte("no letter")})
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()

	broken := func(rec *kafkaadapter.Record) error {
		if string(rec.Event.ID) == "2" {
			return nil
		}
		return errors.New("broken")
	}
	consume(t, b, eng, group, topic, 3, broken)
	b.ConsumeTopic(t, letters, 3)
	send := func(as string, want counted) {
		t.Helper()
		if n, err := replay(t.Context(), letters, as, b.ClientOptions()...); n != want || err != nil {
			t.Fatalf("replayed %+v, want %+v (%v)", n, want, err)
		}
	}
	first, second := kafkatest.Name(t), kafkatest.Name(t)
	send(first, counted{sent: 2, left: 1})
	send(first, counted{}) // the offset that the first replay reached is committed

	var handled []string
	mended := func(rec *kafkaadapter.Record) error {
		if rec.Reopened && string(rec.Value) == "v"+string(rec.Event.ID) {
			handled = append(handled, string(rec.Event.ID))
		}
		return nil
	}
	send(second, counted{sent: 2, left: 1}) // all letters again
	consume(t, b, eng, group, topic, 7, mended)
	if slices.Sort(handled); !slices.Equal(handled, []string{"1", "3"}) {
		t.Errorf("handled as replays: %q", handled)
	}
}

// Offsets are missing before the recorded end, as in a compacted topic.
func TestNoRecordAfterTheEndIsSent(t *testing.T) {
	to := ends{0: 10, 1: 10}
	for _, c := range []struct {
		partition int32
		offset    int64
		want      bool
		left      int // partitions that are still read
	}{
		{0, 7, true, 2},
		{0, 10, false, 1},
		{0, 11, false, 1},
		{1, 9, true, 0},
		{1, 12, false, 0},
	} {
		got := to.includes(&kgo.Record{Partition: c.partition, Offset: c.offset})
		if got != c.want || len(to) != c.left {
			t.Errorf("%d@%d: included %v, %d partitions left; want %v, %d", c.partition, c.offset, got, len(to), c.want, c.left)
		}
	}
}

// consume runs a consumer until it has reached an offset of the topic's only partition.
func consume(t *testing.T, b *kafkatest.Broker, eng *engine.Engine, group, topic string, to int64, handle func(*kafkaadapter.Record) error) {
	t.Helper()
	c, err := kafkaadapter.New(eng, kafkaadapter.Options{
		Group: group, Client: b.ClientOptions(),
		Routes: []kafkaadapter.Route{{
			Topics: []string{topic},
			Mode: kafkaadapter.Transactional{MaxAttempts: 1, Handle: func(_ context.Context, _ *engine.Tx, rec *kafkaadapter.Record) error {
				return handle(rec)
			}},
			DeadLetters: &deadletter.Options{},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.RunUntilCommitted(t, group, topic, 0, to, c.Run)
}
