package kafkaadapter

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// checkReported waits until Ready has an error with a text, and the log and the gauge report it.
func (m *member) checkReported(t *testing.T, text string, gauge string, labels ...string) {
	t.Helper()
	kafkatest.Until(t, "Ready to say "+text, func() bool {
		err := m.Ready()
		return errors.Is(err, ErrNotReady) && strings.Contains(err.Error(), text)
	})
	m.counts(t, 0, "ready")
	m.counts(t, 1, gauge, labels...)
	kafkatest.Until(t, "the log to say "+text, func() bool { return m.logs.has("the consumer is not ready") && m.logs.has(text) })
	if err := m.Ready(); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("it is not reported as long as it lasts: %v", err)
	}
}

func soon(o *Options) { o.SilenceTimeout = 200 * time.Millisecond }

func TestConsumerThatCannotConnectSaysWhy(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	closed, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "user", "right"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closed.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for name, tt := range map[string]struct {
		o           []kgo.Opt
		text, state string
	}{
		"nothing listens": {[]kgo.Opt{kgo.SeedBrokers(l.Addr().String())}, "connection refused", "never_connected"},
		"wrong password": {[]kgo.Opt{kgo.SeedBrokers(closed.ListenAddrs()...), kgo.SASL(plain.Auth{User: "user", Pass: "wrong"}.AsMechanism())},
			"check user, password", "authentication_failed"},
		"no password": {[]kgo.Opt{kgo.SeedBrokers(closed.ListenAddrs()...)}, "check whether TLS and SASL", "never_connected"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			m := r.start(t, r.work(1, nil), soon, func(o *Options) { o.Client = append(o.Client, tt.o...) })
			m.checkReported(t, tt.text, "connection", tt.state)
			if err := m.Ready(); !errors.Is(err, ErrDisconnected) {
				t.Errorf("Ready: %v", err)
			}
			m.counts(t, 1, "connection") // one state
			m.stop(t)
		})
	}
}

func TestConsumerThatLosesItsConnectionSaysSo(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	r.send(t, 0, "a")
	w := newCuttable()
	m := r.start(t, r.work(1, nil), soon, w.options)
	r.untilStored(t, 0, 1)
	kafkatest.Until(t, "ready", func() bool { return m.Ready() == nil })
	m.counts(t, 1, "ready")
	m.counts(t, 1, "connection", "connected")
	w.cut()
	m.checkReported(t, "no way there", "connection", "lost")
	w.up.Store(true)
	kafkatest.Until(t, "ready again", func() bool { return m.Ready() == nil })
	m.counts(t, 1, "connection", "connected")
	m.stop(t)
}

// A consumer that is assigned partitions whose commits the client cannot fetch reads nothing.
func TestConsumerWhoseCommitsCannotBeFetchedIsNotReady(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	for name, failure := range map[string]*kerr.Error{"unstable": kerr.UnstableOffsetCommit, "loading": kerr.CoordinatorLoadInProgress} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.send(t, 0, "a")
			h := r.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: failure, Count: -1})
			m := r.start(t, r.work(1, nil), soon)
			m.checkReported(t, "the group's offsets of 1 new partitions cannot be fetched", "connection", "connected")
			h.Remove()
			r.untilStored(t, 0, 1)
			kafkatest.Until(t, "ready", func() bool { return m.Ready() == nil })
			m.stop(t)
		})
	}
}

func TestConsumerOfAMissingTopicIsNotReady(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	r := newRig(t, 1)
	m := r.start(t, r.work(1, nil), soon, func(o *Options) {
		o.Routes[0].Topics = append(o.Routes[0].Topics, "nowhere")
		o.Routes[0].DeadLetters = nil
		o.Routes[0].Mode = AtMostOnce(func(context.Context, *Record) error { return nil })
		o.Routes[0].Policies = RejectUnclaimable()
	})
	m.checkReported(t, "topic nowhere cannot be consumed", "connection", "connected")
	m.stop(t)
}

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
func TestLostPartitionsAreReported(t *testing.T) {
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
