package kafkaadapter

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// A flippingConn changes a byte in the header of the batch at an offset, once.
type flipping struct {
	net.Conn
	offset uint64
	at     int  // byte of the header
	bit    byte // what is flipped
	once   *sync.Once
}

func (f *flipping) Read(b []byte) (n int, err error) {
	n, err = f.Conn.Read(b)
	for i := 0; i+61 <= n; i++ {
		const magic = 16
		if binary.BigEndian.Uint64(b[i:]) == f.offset && b[i+magic] == 2 && bytes.Contains(b[i:n], []byte("value-damaged")) {
			f.once.Do(func() { b[i+f.at] ^= f.bit })
			return n, err
		}
	}
	return n, err
}

// No checksum covers some bytes in the headers of batches. The client skips such a batch, with or
// without an error.
func TestBatchThatTheClientSkipsIsNotLost(t *testing.T) {
	for name, tt := range map[string]struct {
		at      int
		bit     byte
		reasons []string
	}{
		"unknown magic":       {16, 1, []string{"unreadable"}},
		"an offset below":     {7, 1, []string{"gap"}},
		"an offset far above": {5, 1, []string{"gap"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.send(t, 0, "before")
			m := r.start(t, r.work(2, nil))
			r.untilStored(t, 0, 1)
			m.stop(t)
			// the first batch that is fetched, so that the client has no earlier offset
			r.send(t, 0, "damaged")
			r.send(t, 0, "after")
			var once sync.Once
			m = r.start(t, r.work(2, nil), func(o *Options) {
				o.Client = append(o.Client, kgo.Dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, addr)
					return &flipping{conn, 1, tt.at, tt.bit, &once}, err
				}))
			})
			e := m.stoppedOne(t)
			if !slices.Contains(tt.reasons, e.Reason) || e.Reason == "gap" && !errors.Is(e, ErrGap) {
				t.Errorf("stopped: %v", e)
			}
			r.untilStored(t, 0, 3)
			m.stop(t)
			r.checkOnce(t, "before", "damaged", "after")
			if len(m.stops) > 0 {
				t.Errorf("stopped once more: %v", <-m.stops)
			}
			if n := r.stored(t, 0); n != 3 {
				t.Errorf("the store is at %d", n)
			}
		})
	}
}

// Legitimate gaps between offsets stop no partition: aborted and compacted records, and markers.
func TestGapsOfCompactionAndTransactionsAreExplained(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	r.topic = r.CreateTopic(t, 1, map[string]string{
		"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1", "max.compaction.lag.ms": "1",
	})
	r.CreateNamed(t, r.topic+"-dlt", 1, nil)
	keyed := func(key, id string) *kgo.Record {
		rec := r.event(0, id)
		rec.Key = []byte(key)
		return rec
	}
	var batch []*kgo.Record
	for i := range 30 {
		batch = append(batch, keyed(fmt.Sprint("k", i%3), fmt.Sprint("a", i)))
	}
	r.Produce(t, batch...)
	r.ProduceTx(t, false, keyed("x", "no"), keyed("y", "no"))
	r.ProduceTx(t, true, keyed("k0", "b0"))
	r.ProduceTx(t, false, keyed("k1", "no"))
	r.Produce(t, keyed("k1", "b1"))
	r.Produce(t, keyed("k2", "b2"))
	r.Produce(t, keyed("last", "b3"))
	r.Cluster(t).Compact()
	end := r.Log(t, r.topic, 0).End
	left := kafkatest.Consume(t, r.Client(t, kgo.ConsumeTopics(r.topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart())), 4)
	if left[0].Offset == 0 || len(left) > 10 {
		t.Fatalf("%d records are left from offset %d: nothing was compacted", len(left), left[0].Offset)
	}
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, end)
	m.stop(t)
	select {
	case e := <-m.stops:
		t.Errorf("stopped: %v", e)
	default:
	}
	r.checkOnce(t, "b0", "b1", "b2", "b3")
}
