package kafkaadapter

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// Run ends in time although no broker answers: connections are refused, or never read, or a broker that
// has answered does not do so any more.
func TestRunEndsInTimeWithoutBrokers(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	accepted := make(chan net.Conn, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	for name, begin := range map[string]func(*testing.T, *rig, func(*Options)) *member{
		"no reads": func(t *testing.T, r *rig, short func(*Options)) *member {
			m := r.start(t, r.work(1, nil), short, func(o *Options) { o.Client = append(o.Client, kgo.SeedBrokers(l.Addr().String())) })
			kafkatest.Receive(t, accepted)
			return m
		},
		"cut": func(t *testing.T, r *rig, short func(*Options)) *member {
			w := newCuttable()
			m := r.start(t, r.work(1, nil), short, w.options)
			r.untilStored(t, 0, 1)
			w.cut()
			w.untilFailed(t, m)
			return m
		},
		"frozen": func(t *testing.T, r *rig, short func(*Options)) *member {
			m := r.start(t, r.work(1, nil), short)
			r.untilStored(t, 0, 1)
			frozen := make(chan struct{})
			t.Cleanup(func() { close(frozen) })
			r.Cluster(t).Control(func(kmsg.Request) (kmsg.Response, error, bool) {
				<-frozen
				return nil, nil, false
			})
			return m
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.send(t, 0, "a")
			m := begin(t, r, func(o *Options) { o.shutdownTimeout = time.Second })
			began := time.Now()
			m.stop(t)
			if took := time.Since(began); took > 10*time.Second { // without a limit it takes 15 s or more
				t.Errorf("Run took %v to end", took)
			}
		})
	}
}

// The series of a lost partition end, except the one that says so, until the member has joined its group again.
func TestSeriesOfLostPartitions(t *testing.T) {
	r := newRig(t, 2)
	r.send(t, 0, "a")
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 1)
	m.counts(t, 0, "partition_stopped", "lost")
	m.assign.lost(map[string][]int32{r.topic: {0, 7}})
	m.counts(t, 1, "partition_stopped", "lost", "0")
	m.counts(t, 1, "partition_stopped", "lost")
	m.counts(t, 1, "stops_total", "lost")
	if err := m.Ready(); !errors.Is(err, ErrNotReady) || !m.logs.has("partitions were lost") {
		t.Errorf("Ready: %v", err)
	}
	m.assign.assigned(nil)
	m.counts(t, 0, "partition_stopped", "lost")
	m.assign.lost(map[string][]int32{r.topic: {1}})
	m.counts(t, 1, "partition_stopped", "lost", "1")
	if p := m.assign.newWorker(topicPartition{r.topic, 1}, nil, 0); p != nil {
		m.parts.put(p.partition)
		m.counts(t, 0, "partition_stopped", "lost")
		m.parts.remove([]*partition{p.partition})
	}
}
