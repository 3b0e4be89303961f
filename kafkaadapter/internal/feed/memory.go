// Package feed holds fetched records within a bound of memory until they are handled, and surveys the log for gaps.
//
// The poll loop puts records into the Queue of their partition, whose goroutine takes them out. A Memory
// counts what all queues hold, a Decompressor keeps the client within it, and a Flow decides what is
// fetched next.
package feed

import (
	"math"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A Memory counts the memory of fetched records, in decompressed bytes, and divides what is left of
// it among the next fetches. Queues and the client take from it; nothing waits for it.
//
// It is a hook of the client, and safe for concurrent use apart from Polled, which the poll loop
// calls.
type Memory struct {
	most    int64
	records int // in a queue before its partition is paused

	held    atomic.Int64 // by queues
	closed  atomic.Bool  // a Flow holds all partitions back until there is room
	fetched atomic.Int64 // by the client, since the last poll
	share   atomic.Int64 // of each queue, before its partition is paused; see divide and aPart
	batch   atomic.Int64 // of records that are popped at once, twice with their copies; see aPart

	// what the batches of the log since the last poll were on the wire, and are in memory
	wire, memory atomic.Int64
	batches      atomic.Int64
	ratio        float64 // memory for a byte on the wire
	typical      float64 // bytes of a batch on the wire
}

var _ kgo.HookFetchBatchRead = (*Memory)(nil)

// recordMemory estimates the memory of a fetched record without its contents: the struct, and its
// share of slices.
const recordMemory = 256

// firstRatio is assumed until batches were fetched. JSON compresses to a tenth and less; too high a
// ratio makes the first fetch smaller.
const firstRatio = 32

// firstBatch is assumed to be the size of a batch on the wire until some were fetched.
const firstBatch = 32 << 10

// NewMemory returns a memory of the given number of bytes, for queues of a number of records.
func NewMemory(most int64, records int) *Memory {
	m := &Memory{most: most, records: records, ratio: firstRatio, typical: firstBatch}
	m.divide(0)
	return m
}

// hold adds to what queues hold; bytes is negative for records that are done.
func (m *Memory) hold(bytes int64) { m.held.Add(bytes) }

// Held returns how much queues hold.
func (m *Memory) Held() int64 { return m.held.Load() }

// IsFull reports whether queues hold all of the memory, or a Flow waits for room in it.
func (m *Memory) IsFull() bool { return m.held.Load() >= m.most || m.closed.Load() && !m.hasRoom() }

// hasRoom reports whether a memory that was full can be fetched into again.
func (m *Memory) hasRoom() bool { return m.held.Load() < m.most-m.most/16 }

// refuses reports whether the client is to decompress nothing more.
func (m *Memory) refuses() bool { return m.held.Load()+m.fetched.Load() >= m.most }

// OnFetchBatchRead counts a batch of the log that the client has decompressed.
func (m *Memory) OnFetchBatchRead(_ kgo.BrokerMetadata, _ string, _ int32, b kgo.FetchBatchMetrics) {
	if b.NumRecords == 0 {
		return // it was not decompressed
	}
	bytes := int64(b.UncompressedBytes) + recordMemory*int64(b.NumRecords)
	m.fetched.Add(bytes)
	m.memory.Add(bytes)
	m.wire.Add(int64(b.CompressedBytes))
	m.batches.Add(1)
}

// Polled records that the records of the client were taken. It learns from them how much memory the
// next ones need.
func (m *Memory) Polled() {
	m.fetched.Store(0)
	wire, memory, batches := m.wire.Swap(0), m.memory.Swap(0), m.batches.Swap(0)
	if wire <= 0 || batches <= 0 {
		return
	}
	m.typical += (float64(wire)/float64(batches) - m.typical) / 8
	r := float64(memory) / float64(wire)
	if m.ratio == firstRatio {
		m.ratio = r
	}
	m.ratio = max(r, m.ratio-(m.ratio-r)/8)
}

// A Plan is how much the client may fetch, in bytes on the wire: in all from a broker, and of a
// partition.
type Plan struct{ Fetch, Partition int32 }

// plan divides the memory among those of the assigned partitions that want it, because they have records or the
// broker has some for them, and plans the next fetches of a number of brokers within limits. Half of what is
// left stays for partitions that will want it. A broker answers with at least one batch of the log,
// however small the plan is.
func (m *Memory) plan(wanting, assigned, brokers int, limits Plan) Plan {
	share := m.divide(wanting)
	left := max(0, m.most-m.held.Load()-m.fetched.Load()) / 2
	fetch := m.onWire(left/int64(max(1, brokers)), limits.Fetch)
	partition := min(fetch, m.onWire(min(share, left), limits.Partition))
	if assigned > crowdOf {
		partition = max(partition, min(limits.Fetch/16, max(leastFetch, int32(min(2*m.typical, float64(limits.Fetch))))))
	}
	return Plan{fetch, partition}
}

// Of a partition whose next batch exceeds Plan.Partition, a broker returns nothing unless it is the first in
// an answer, and in a fetch session it keeps that limit until the partition's offset moves. If more
// partitions than crowdOf are assigned, that would take too many answers: each may be fetched at least leastFetch, or
// a typical batch, also while few of them are known to want records. Plan.Fetch bounds the answer in any case.
const (
	crowdOf    = 256
	leastFetch = 16 << 10
)

// divide gives each of the wanting partitions its share of half of the memory. The other half is for
// batches of the log that exceed a share, and for the client. Few partitions leave something to those
// that will want it, because their handlers may hang.
func (m *Memory) divide(wanting int) (share int64) {
	share = m.most / 2 / int64(max(wanting, 16))
	m.share.Store(share)
	m.batch.Store(m.most / 4 / int64(max(wanting, 1)))
	return share
}

// aPart is what one queue may hold, and take at once, while others leave much of the memory unused.
func (m *Memory) aPart() int64 { return (m.most/2 - m.held.Load()) / 64 }

// isAlmostEmpty reports whether too little is held for any queue to be full.
func (m *Memory) isAlmostEmpty() bool {
	return !m.closed.Load() && m.held.Load() < min(int64(m.records)*recordMemory, m.most/256)
}

// onWire is the size of compressed records for which the memory suffices.
func (m *Memory) onWire(bytes int64, most int32) int32 {
	return int32(max(1, math.Min(float64(bytes)/m.ratio, float64(most))))
}
