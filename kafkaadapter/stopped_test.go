package kafkaadapter

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func TestPartitionWithoutALeaderDoesNotDelayOthers(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 2)
	r.send(t, 0, "a")
	r.send(t, 1, "b")
	var away atomic.Bool
	away.Store(true)
	r.Cluster(t).ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.Cluster(t).KeepControl()
		q := req.(*kmsg.ListOffsetsRequest)
		if !away.Load() || !slices.ContainsFunc(q.Topics, func(t kmsg.ListOffsetsRequestTopic) bool {
			return t.Topic == r.topic && slices.ContainsFunc(t.Partitions, func(p kmsg.ListOffsetsRequestTopicPartition) bool { return p.Partition == 1 })
		}) {
			return nil, nil, false
		}
		resp := q.ResponseKind().(*kmsg.ListOffsetsResponse)
		resp.Version = q.Version
		for _, qt := range q.Topics {
			rt := kmsg.NewListOffsetsResponseTopic()
			rt.Topic = qt.Topic
			for _, qp := range qt.Partitions {
				rp := kmsg.NewListOffsetsResponseTopicPartition()
				rp.Partition = qp.Partition
				switch {
				case qp.Partition == 1:
					rp.ErrorCode = kerr.LeaderNotAvailable.Code
				case qp.Timestamp == -1:
					rp.Offset = 1
				default:
					rp.Offset = 0
				}
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	m := r.start(t, r.work(2, nil))
	if e := m.stoppedOne(t); e.Partition != 1 || e.Reason != "unreachable" || !errors.Is(e, kerr.LeaderNotAvailable) {
		t.Errorf("stopped: %v", e)
	}
	r.untilStored(t, 0, 1)
	away.Store(false)
	r.untilStored(t, 1, 1)
	r.checkOnce(t, "a", "b")
	kafkatest.Until(t, "no partition is stopped", func() bool { return len(m.Stopped()) == 0 })
}

func TestDamageInTransitLosesNothing(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "before")
	r.send(t, 0, "damaged")
	r.send(t, 0, "after")
	var once sync.Once
	m := r.start(t, r.work(2, nil), func(o *Options) {
		o.Client = append(o.Client, kgo.Dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &damaging{conn, []byte("value-damaged"), &once}, err
		}))
	})
	if e := m.stoppedOne(t); e.Reason != "unreadable" {
		t.Errorf("stopped: %v", e)
	}
	r.untilStored(t, 0, 3)
	r.checkOnce(t, "before", "damaged", "after")
}

// A damagingConn changes one byte of what it reads, once.
type damaging struct {
	net.Conn
	what []byte
	once *sync.Once
}

func (d *damaging) Read(b []byte) (n int, err error) {
	n, err = d.Conn.Read(b)
	if i := bytes.Index(b[:n], d.what); i >= 0 {
		d.once.Do(func() { b[i] ^= 1 })
	}
	return n, err
}
