package main

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func TestAnEventIsTheSameInBothModes(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 1, nil)
	b.CreateNamed(t, topic+"-dlt", 1, nil)
	at := time.Now().UTC().Add(-time.Hour).Format("2006-01-02T15:04:05Z")
	binary := func(source, id string) *kgo.Record {
		return &kgo.Record{Topic: topic, Value: []byte("binary " + source), Headers: []kgo.RecordHeader{
			{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_type", Value: []byte("door")},
			{Key: "ce_source", Value: []byte(source)}, {Key: "ce_id", Value: []byte(id)}, {Key: "ce_time", Value: []byte(at)},
		}}
	}
	structured := &kgo.Record{
		Topic:   topic,
		Value:   []byte(`{"specversion":"1.0","type":"door","source":"/house/1","id":"1","time":"` + at + `"}`),
		Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json; charset=UTF-8")}},
	}
	other := &kgo.Record{Topic: topic, Value: []byte("no event")}
	b.Produce(t, binary("/house/1", "1"), structured, other, binary("/house/2", "1"), binary("/house/2", "1"))

	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	var out bytes.Buffer
	b.RunUntilCommitted(t, "cloudevents", topic, 0, 5, func(ctx context.Context) error {
		return consume(ctx, eng, &out, topic, b.ClientOptions()...)
	})
	if want := fmt.Sprintf("%s binary /house/1\n%s binary /house/2\n", at, at); out.String() != want {
		t.Errorf("printed\n%swant\n%s", out.String(), want)
	}
	if letter := b.ConsumeTopic(t, topic+"-dlt", 1)[0]; string(letter.Value) != "no event" {
		t.Errorf("dead letter %q", letter.Value)
	}
}
