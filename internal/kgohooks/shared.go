package kgohooks

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A shared passes the calls of one client on to a hook that other clients have too. The Owner calls
// OnNewClient and OnClientClosed.
type shared struct {
	hook kgo.Hook
	gate *gate
}

var (
	_ kgo.HookBrokerConnect       = shared{}
	_ kgo.HookBrokerDisconnect    = shared{}
	_ kgo.HookBrokerWrite         = shared{}
	_ kgo.HookBrokerRead          = shared{}
	_ kgo.HookBrokerE2E           = shared{}
	_ kgo.HookBrokerThrottle      = shared{}
	_ kgo.HookGroupManageError    = shared{}
	_ kgo.HookProduceBatchWritten = shared{}
	_ kgo.HookFetchBatchRead      = shared{}
	_ kgo.HookPollStart           = shared{}
)

// OnBrokerConnect implements [kgo.HookBrokerConnect].
func (s shared) OnBrokerConnect(meta kgo.BrokerMetadata, took time.Duration, conn net.Conn, err error) {
	if h, ok := s.hook.(kgo.HookBrokerConnect); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnBrokerConnect(meta, took, conn, err)
	}
}

// OnBrokerDisconnect implements [kgo.HookBrokerDisconnect].
func (s shared) OnBrokerDisconnect(meta kgo.BrokerMetadata, conn net.Conn) {
	if h, ok := s.hook.(kgo.HookBrokerDisconnect); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnBrokerDisconnect(meta, conn)
	}
}

// OnBrokerWrite implements [kgo.HookBrokerWrite].
func (s shared) OnBrokerWrite(meta kgo.BrokerMetadata, key int16, n int, wait, took time.Duration, err error) {
	if h, ok := s.hook.(kgo.HookBrokerWrite); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnBrokerWrite(meta, key, n, wait, took, err)
	}
}

// OnBrokerRead implements [kgo.HookBrokerRead].
func (s shared) OnBrokerRead(meta kgo.BrokerMetadata, key int16, n int, wait, took time.Duration, err error) {
	if h, ok := s.hook.(kgo.HookBrokerRead); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnBrokerRead(meta, key, n, wait, took, err)
	}
}

// OnBrokerE2E implements [kgo.HookBrokerE2E].
func (s shared) OnBrokerE2E(meta kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	if h, ok := s.hook.(kgo.HookBrokerE2E); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnBrokerE2E(meta, key, e2e)
	}
}

// OnBrokerThrottle implements [kgo.HookBrokerThrottle].
func (s shared) OnBrokerThrottle(meta kgo.BrokerMetadata, interval time.Duration, after bool) {
	if h, ok := s.hook.(kgo.HookBrokerThrottle); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnBrokerThrottle(meta, interval, after)
	}
}

// OnGroupManageError implements [kgo.HookGroupManageError].
func (s shared) OnGroupManageError(err error) {
	if h, ok := s.hook.(kgo.HookGroupManageError); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnGroupManageError(err)
	}
}

// OnProduceBatchWritten implements [kgo.HookProduceBatchWritten].
func (s shared) OnProduceBatchWritten(meta kgo.BrokerMetadata, topic string, partition int32, m kgo.ProduceBatchMetrics) {
	if h, ok := s.hook.(kgo.HookProduceBatchWritten); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnProduceBatchWritten(meta, topic, partition, m)
	}
}

// OnFetchBatchRead implements [kgo.HookFetchBatchRead].
func (s shared) OnFetchBatchRead(meta kgo.BrokerMetadata, topic string, partition int32, m kgo.FetchBatchMetrics) {
	if h, ok := s.hook.(kgo.HookFetchBatchRead); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnFetchBatchRead(meta, topic, partition, m)
	}
}

// OnPollStart implements [kgo.HookPollStart].
func (s shared) OnPollStart(ctx context.Context) {
	if h, ok := s.hook.(kgo.HookPollStart); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnPollStart(ctx)
	}
}

// A sharedOfRecords is a shared that also passes on the calls for each record. Hooks without these
// methods avoid their cost.
type sharedOfRecords struct{ shared }

var (
	_ kgo.HookProduceRecordBuffered    = sharedOfRecords{}
	_ kgo.HookProduceRecordPartitioned = sharedOfRecords{}
	_ kgo.HookProduceRecordUnbuffered  = sharedOfRecords{}
	_ kgo.HookFetchRecordBuffered      = sharedOfRecords{}
	_ kgo.HookFetchRecordUnbuffered    = sharedOfRecords{}
)

func ofRecords(h kgo.Hook) bool {
	switch h.(type) {
	case kgo.HookProduceRecordBuffered, kgo.HookProduceRecordPartitioned, kgo.HookProduceRecordUnbuffered,
		kgo.HookFetchRecordBuffered, kgo.HookFetchRecordUnbuffered:
		return true
	}
	return false
}

// OnProduceRecordBuffered implements [kgo.HookProduceRecordBuffered].
func (s sharedOfRecords) OnProduceRecordBuffered(r *kgo.Record) {
	if h, ok := s.hook.(kgo.HookProduceRecordBuffered); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnProduceRecordBuffered(r)
	}
}

// OnProduceRecordPartitioned implements [kgo.HookProduceRecordPartitioned].
func (s sharedOfRecords) OnProduceRecordPartitioned(r *kgo.Record, leader int32) {
	if h, ok := s.hook.(kgo.HookProduceRecordPartitioned); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnProduceRecordPartitioned(r, leader)
	}
}

// OnProduceRecordUnbuffered implements [kgo.HookProduceRecordUnbuffered].
func (s sharedOfRecords) OnProduceRecordUnbuffered(r *kgo.Record, err error) {
	if h, ok := s.hook.(kgo.HookProduceRecordUnbuffered); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnProduceRecordUnbuffered(r, err)
	}
}

// OnFetchRecordBuffered implements [kgo.HookFetchRecordBuffered].
func (s sharedOfRecords) OnFetchRecordBuffered(r *kgo.Record) {
	if h, ok := s.hook.(kgo.HookFetchRecordBuffered); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnFetchRecordBuffered(r)
	}
}

// OnFetchRecordUnbuffered implements [kgo.HookFetchRecordUnbuffered].
func (s sharedOfRecords) OnFetchRecordUnbuffered(r *kgo.Record, polled bool) {
	if h, ok := s.hook.(kgo.HookFetchRecordUnbuffered); ok && s.gate.enter() {
		defer s.gate.leave()
		h.OnFetchRecordUnbuffered(r, polled)
	}
}

// A gate is passed by the calls of an Owner's clients. The client may make some in goroutines that
// outlive it, and then the hook may be registered again already.
type gate struct {
	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// enter reports whether a call may begin.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.calls.Add(1)
	return true
}

func (g *gate) leave() { g.calls.Done() }

// close waits for the calls that have begun. No other call begins.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.calls.Wait()
}
