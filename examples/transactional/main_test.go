package main

import (
	"context"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func TestEachTextIsCountedOnce(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 1, nil)
	letters := topic + "-dlt"
	b.CreateNamed(t, letters, 1, nil)
	text := func(id, text string) *kgo.Record {
		return &kgo.Record{Topic: topic, Value: []byte(text), Headers: []kgo.RecordHeader{{Key: "message_id", Value: []byte(id)}}}
	}
	b.Produce(t, text("1", "to be or"), text("1", "to be or"), text("2", "\xff"), text("3", "not to be"))
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()

	b.RunUntilCommitted(t, "transactional", topic, 0, 4, func(ctx context.Context) error {
		return consume(ctx, eng, topic, b.ClientOptions()...)
	})
	if letter := b.ConsumeTopic(t, letters, 1)[0]; string(letter.Value) != "\xff" {
		t.Errorf("dead letter %q", letter.Value)
	}
	err = eng.Update(t.Context(), func(tx *engine.Tx) error {
		for word, want := range map[string]int64{"to": 2, "be": 2, "or": 1, "not": 1} {
			if n, err := words(tx, []byte(word)); n != want || err != nil {
				t.Errorf("%q was counted %d times, want %d (%v)", word, n, want, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
