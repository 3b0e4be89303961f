package simulation

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// maxBatch is the largest number of records in a batch, and so of the events of a partition that AtMostOnce may lose.
const maxBatch = 8

// sessionTimeout is the shortest that brokers accept.
const sessionTimeout = 6 * time.Second

func (m *machine) options() kafkaadapter.Options {
	w := m.w
	o := kafkaadapter.Options{
		Group:      group,
		Routes:     []kafkaadapter.Route{{Topics: []string{topic}}},
		Client:     w.client(m.wire.dial, kgo.SessionTimeout(sessionTimeout)),
		Membership: kafkaadapter.Membership{InstanceID: "machine", CommitInterval: 5 * time.Millisecond},
		Batching:   kafkaadapter.Batching{MaxBatch: maxBatch},
		Backoff:    kafkaadapter.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond},
		Recovery:   w.recovery,
		Telemetry:  kafkaadapter.Telemetry{Logger: w.logger},
		Hooks:      kafkaadapter.Hooks{OnStop: m.stopped, OnLost: m.lost},
	}
	r := &o.Routes[0]
	if w.atMostOnce {
		r.Mode = kafkaadapter.AtMostOnce{Handle: m.handleOnce}
		r.TooOld, r.TooNew, r.Undecodable = kafkaadapter.Reject, kafkaadapter.Reject, kafkaadapter.Reject
		return o
	}
	r.Mode = kafkaadapter.Transactional{Handle: m.handle, MaxAttempts: maxAttempts}
	r.DeadLetters = &deadletter.Options{}
	return o
}

// stopped is called when a partition stops. Only an intrusion may stop one.
func (m *machine) stopped(e *kafkaadapter.StopError) {
	if m.p.off.Load() {
		return
	}
	w := m.w
	if i := w.intrusion; i != nil && int(e.Partition) == i.partition && errors.Is(e, i.kind) {
		i.seen.Store(true)
		return
	}
	if m.faults.mayStop(e) {
		return
	}
	w.violate("%v", e)
}

// lost is called when the group has taken partitions away at once. AtMostOnce loses what waited for its handler.
func (m *machine) lost(lost map[string][]int32) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.w.atRisk += len(lost[topic]) * maxBatch
	m.w.tally.expelled++
}
