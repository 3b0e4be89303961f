package changelog

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
)

// A producer appends the records of all logs of a process until it fails. It is a hook of its client.
type producer struct {
	kafka  *kgo.Client
	failed chan struct{} // closed when it has failed
	once   sync.Once
	cause  error // of the failure, set before failed is closed

	mu          sync.Mutex // guards the rest
	busy        map[brokers.Partition]chan struct{}
	connections map[int32]int // how often a broker was connected to
}

func newProducer() *producer {
	return &producer{failed: make(chan struct{}), busy: make(map[brokers.Partition]chan struct{}), connections: make(map[int32]int)}
}

var _ kgo.HookBrokerConnect = (*producer)(nil)

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (p *producer) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connections[meta.NodeID]++
}

// fail ends the producer: all appends that wait fail.
func (p *producer) fail(cause error) {
	p.once.Do(func() {
		p.cause = cause
		close(p.failed)
		p.kafka.CloseAllowingRebalance()
	})
}

// begin waits until no record of the partition is in flight, so that a record is in a batch of its own, and a
// broker's answer is about this record.
func (p *producer) begin(ctx context.Context, of brokers.Partition) error {
	for {
		p.mu.Lock()
		wait, is := p.busy[of]
		if !is {
			p.busy[of] = make(chan struct{})
		}
		p.mu.Unlock()
		if !is {
			return nil
		}
		select {
		case <-wait:
		case <-p.failed:
			return p.cause
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *producer) end(of brokers.Partition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.busy[of])
	delete(p.busy, of)
}

// append appends a record. When ctx ends it returns, and the record stays in flight: its bytes must remain
// as they are.
func (p *producer) append(ctx context.Context, of brokers.Partition, value []byte) (offset int64, err error) {
	if err := p.begin(ctx, of); err != nil {
		return 0, err
	}
	type outcome struct {
		offset int64
		err    error
	}
	done := make(chan outcome, 1) // nobody may wait for it any more
	p.kafka.Produce(context.Background(), &kgo.Record{Topic: of.Topic, Partition: of.Partition, Value: value}, func(r *kgo.Record, err error) {
		p.end(of)
		done <- outcome{r.Offset, err}
	})
	select {
	case o := <-done:
		return o.offset, o.err
	case <-p.failed:
		return 0, p.cause
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// forget lets the next append look the topic up, which was deleted and created again.
func (p *producer) forget(topic string) { p.kafka.PurgeTopicsFromProducing(topic) }

// leadership is what the producer knows of the leader of a partition: as long as it is the same, so is the
// leader's epoch.
type leadership struct {
	broker      int32
	epoch       int32
	connections int
}

func (p *producer) leadership(of brokers.Partition) leadership {
	broker, epoch, err := p.kafka.PartitionLeader(of.Topic, of.Partition)
	if err != nil {
		broker, epoch = -1, -1
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return leadership{broker, epoch, p.connections[broker]}
}
