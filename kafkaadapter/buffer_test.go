package kafkaadapter

import (
	"crypto/rand"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// Large records behind a handler that blocks: the buffered bytes stay within the bound, and all
// records are handled in the end.
func TestBufferedRecordsAreBoundedInBytes(t *testing.T) {
	const size, budget, records = 64 << 10, 2 << 20, 200
	r := newRig(t, 1)
	mode, began, release, _ := r.stuck("a0")
	for _, id := range numbered("a", records) {
		rec := r.event(0, id)
		rec.Value = make([]byte, size)
		// the client's bound is on the compressed bytes that the brokers send
		_, _ = rand.Read(rec.Value)
		r.Produce(t, rec)
	}
	m := r.start(t, mode, func(o *Options) {
		o.MaxBufferedBytes = budget
		o.Client = append(o.Client, kgo.FetchMaxBytes(256<<10))
	})
	kafkatest.Receive(t, began)
	p := m.parts.get(topicPartition{r.topic, 0})
	kafkatest.Until(t, "a pause, or all records in memory", func() bool {
		n, _ := p.queue.Size()
		return m.metric(t, "paused_total") > 0 || n > records/2
	})
	_, held := p.queue.Size()
	if held += m.shared.brokers.client.BufferedFetchBytes(); held > budget {
		t.Errorf("%d bytes are buffered, the bound is %d", held, budget)
	}
	close(release)
	r.untilStored(t, 0, records)
	m.stop(t)
	r.checkOnce(t, numbered("a", records)...)
}

func TestMemoryIsDividedAmongFetches(t *testing.T) {
	for budget, want := range map[int64]int32{0: 4 << 20, 1 << 20: 32 << 10, 1 << 40: maxFetchBytes} {
		o := someOptions()
		o.MaxBufferedBytes = budget
		c, err := New(memEngine(t), o)
		if err != nil {
			t.Fatal(err)
		}
		client, err := kgo.NewClient(c.clientOptions()...)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(client.OptValue(kgo.FetchMaxBytes)); got != fmt.Sprint(want) {
			t.Errorf("of %d bytes, a fetch may have %s, want %d", budget, got, want)
		}
		client.Close()
	}
}
