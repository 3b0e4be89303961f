package deadletter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// noise returns n incompressible bytes.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // Read never fails
	return b
}

// aPublisher publishes to a new topic that accepts batches of at most limit bytes. Its client
// merges letters that are produced concurrently.
func aPublisher(t *testing.T, limit int, more ...kgo.Opt) (*kafkatest.Broker, *Publisher) {
	t.Helper()
	b := kafkatest.Start(t, kafkatest.Options{})
	topic := b.CreateTopic(t, 1, map[string]string{"max.message.bytes": fmt.Sprint(limit)})
	client := b.Client(t, append(more, kgo.ProducerBatchMaxBytes(64<<20), kgo.ProducerLinger(200*time.Millisecond))...)
	return b, NewPublisher(client, topic)
}

func failed(r *kgo.Record) *kgo.Record {
	return anIssuer.Letter(r, nil, Failure{Reason: Attempts, Err: errors.New("no")}, Neutral)
}

func lettersOf(n, bytes int) *Pending {
	p := new(Pending)
	for range n {
		r := aRecord()
		r.Value = noise(bytes)
		p.Letters = append(p.Letters, failed(r))
	}
	return p
}

func publish(t *testing.T, p *Publisher, pending *Pending, omit bool) (acked []*kgo.Record) {
	t.Helper()
	err := p.Publish(context.Background(), pending, omit, func(r *kgo.Record) { acked = append(acked, r) })
	if err != nil || len(pending.Letters) > 0 {
		t.Errorf("%d letters are left: %v", len(pending.Letters), err)
	}
	return acked
}

// The client would make one batch of them, and the broker would reject it.
func TestLettersAreChunksThatTheBrokerAccepts(t *testing.T) {
	b, p := aPublisher(t, 100_000)
	if acked := publish(t, p, lettersOf(20, 30_000), false); len(acked) != 20 {
		t.Errorf("%d were acknowledged", len(acked))
	}
	if p.limit != 100_000 {
		t.Errorf("chunks of %d bytes", p.limit)
	}
	if n := b.Log(t, p.topic, 0).End; n != 20 {
		t.Errorf("the topic has %d", n)
	}
}

func TestLettersOfTwoPartitionsAreNotMerged(t *testing.T) {
	b, p := aPublisher(t, 100_000)
	done := make(chan error, 2)
	for range 2 {
		go func() {
			done <- p.Publish(context.Background(), lettersOf(1, 90_000), false, func(*kgo.Record) {})
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if n := b.Log(t, p.topic, 0).End; n != 2 {
		t.Errorf("the topic has %d", n)
	}
}

// An unknown or lowered limit is found.
func TestRejectedChunksBecomeSmaller(t *testing.T) {
	_, p := aPublisher(t, 100_000)
	p.limit = 10_000_000
	if acked := publish(t, p, lettersOf(5, 60_000), false); len(acked) != 5 {
		t.Errorf("%d were acknowledged", len(acked))
	}
}

func TestOneRejectedLetterIsNamedWithItsRemedy(t *testing.T) {
	_, p := aPublisher(t, 100_000)
	pending := lettersOf(1, 1000)
	pending.Letters = append(pending.Letters, lettersOf(1, 200_000).Letters...)
	acked := 0
	err := p.Publish(context.Background(), pending, false, func(*kgo.Record) { acked++ })
	if !errors.Is(err, ErrTooLarge) || acked != 1 || len(pending.Letters) != 1 || len(pending.Letters[0].Value) != 200_000 {
		t.Errorf("%d acknowledged, %d left: %v", acked, len(pending.Letters), err)
	}
}

// Only what is too large is left out.
func TestTooLargeLettersAreShortened(t *testing.T) {
	large := string(noise(200_000))
	for _, c := range []struct {
		name, key, value, header string
		omitted                  string
		bytes                    string
	}{
		{"none", "k", "v", "h", "", ""},
		{"value", "k", large, "h", "value", "200000"},
		{"key", large, "v", "h", "record", "200010"},
		{"header", "k", "v", large, "record", "200010"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, p := aPublisher(t, 100_000)
			r := aRecord("more", c.header)
			r.Key, r.Value = []byte(c.key), []byte(c.value)
			acked := publish(t, p, &Pending{Letters: []*kgo.Record{failed(r)}}, true)
			if len(acked) != 1 {
				t.FailNow()
			}
			got := b.ConsumeTopic(t, p.topic, 1)[0]
			h := values(t, got)
			if h[dltOmitted] != c.omitted || h[dltOmittedBytes] != c.bytes {
				t.Errorf("omitted %s bytes of the %s, want %s of the %s", h[dltOmittedBytes], h[dltOmitted], c.bytes, c.omitted)
			}
			if h[dltTopic] != "orders" || h[dltPartition] != "3" || h[dltOffset] != "4711" || h[dltReason] != "attempts" {
				t.Errorf("headers %v", h)
			}
			if keeps := c.omitted != "record"; keeps != (string(got.Key) == c.key) || keeps != (h["more"] == c.header) {
				t.Errorf("key of %d bytes, header of %d bytes", len(got.Key), len(h["more"]))
			}
			if (c.omitted == "") != (string(got.Value) == c.value) || (c.omitted == "") != (Incomplete(got) == nil) {
				t.Errorf("value of %d bytes, %v", len(got.Value), Incomplete(got))
			}
			if ReasonOf(acked[0]) != Attempts || (Incomplete(acked[0]) == nil) != (c.omitted == "") {
				t.Errorf("acknowledged %v", values(t, acked[0]))
			}
		})
	}
}

func TestPublishEndsWithItsContextWhileAnotherPublishes(t *testing.T) {
	p := NewPublisher(nil, "orders-dlt")
	p.turn <- struct{}{}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.Publish(ctx, lettersOf(1, 1), false, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A replay without its value that is rejected again has lost both.
func TestShortenedTwiceCountsAllBytes(t *testing.T) {
	r := aRecord("more", string(noise(3000)))
	r.Value = noise(5000)
	letter := failed(r)
	for _, c := range []struct {
		most    int
		omitted string
		bytes   string
	}{{8000, "value", "5000"}, {8000, "value", "5000"}, {2000, "record", "8009"}} {
		letter = shorten(letter, c.most)
		if h := values(t, letter); h[dltOmitted] != c.omitted || h[dltOmittedBytes] != c.bytes || Size(letter) > c.most {
			t.Errorf("at most %d bytes: %d, omitted %s bytes of the %s", c.most, Size(letter), h[dltOmittedBytes], h[dltOmitted])
		}
	}
}

// A client with records requests a producer id again as soon as a request fails, without limit:
// only the retries of one request have pauses between them.
func TestLettersDoNotMakeTheClientSpinForAProducerID(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	b, p := aPublisher(t, 100_000, kgo.RequestRetries(0))
	const refusals = 1000
	var asked atomic.Int64
	b.Cluster(t).ControlKey(int16(kmsg.InitProducerID), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster(t).KeepControl()
		if asked.Add(1) > refusals {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ErrorCode = kerr.CoordinatorLoadInProgress.Code
		return resp, nil, true
	})
	pending := lettersOf(2, 1)
	err := p.Publish(t.Context(), pending, false, func(*kgo.Record) { t.Error("a letter was acknowledged") })
	if !errors.Is(err, kerr.CoordinatorLoadInProgress) || len(pending.Letters) != 2 {
		t.Errorf("%d letters are left: %v", len(pending.Letters), err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the broker was asked %d times for a producer id", n)
	}
	asked.Store(refusals)
	if acked := publish(t, p, pending, false); len(acked) != 2 {
		t.Errorf("%d were acknowledged in the end", len(acked))
	}
}
