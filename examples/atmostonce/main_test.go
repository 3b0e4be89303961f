package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func TestANoticeThatIsSentTwiceIsShownOnce(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 1, nil)
	notice := func(id, text string) *kgo.Record {
		return &kgo.Record{Topic: topic, Value: []byte(text), Headers: []kgo.RecordHeader{{Key: "message_id", Value: []byte(id)}}}
	}
	b.Produce(t, notice("1", "rain"), notice("2", "sun"), notice("1", "rain"), notice("3", "snow"))
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()

	lines := shown(t, eng, topic, b.ClientOptions()...)
	for _, want := range []string{"rain", "sun", "snow"} {
		if got := <-lines; got != want {
			t.Errorf("shown %q, want %q", got, want)
		}
	}
}

// shown runs consume until the test ends, and returns its output.
func shown(t *testing.T, eng *engine.Engine, topic string, client ...kgo.Opt) <-chan string {
	lines := make(chan string, 100)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- consume(ctx, eng, writer(lines), topic, client...) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return lines
}

type writer chan<- string

var _ io.Writer = writer(nil)

func (w writer) Write(b []byte) (int, error) {
	w <- strings.TrimSuffix(string(b), "\n")
	return len(b), nil
}
