package kafkaadapter

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
)

// queued is the memory of the records in the queues of a member.
func (m *member) queued() (bytes int64) {
	for _, p := range m.parts.all() {
		_, held := p.queue.Size()
		bytes += held
	}
	return bytes
}

// fill produces records to all partitions, n to each, in batches of the given size before compression.
// It returns what the records need in memory.
func (r *rig) fill(t *testing.T, n int, size int32, codec kgo.CompressionCodec) (bytes int64) {
	t.Helper()
	c := r.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(codec), kgo.ProducerBatchMaxBytes(size))
	var recs []*kgo.Record
	for i := range n {
		for p := range r.partitions {
			rec := r.event(p, fmt.Sprint(p, "-", i))
			rec.Value = []byte(strings.Repeat(fmt.Sprintf(`{"payment":%d,"amount":"12.50","currency":"EUR"},`, i), 20))
			recs = append(recs, rec)
			bytes += feed.RecordBytes(rec)
		}
	}
	if err := c.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return bytes
}

// hanging is a mode whose handlers wait until release is closed.
func (r *rig) hanging() (mode Transactional, begun func() int, release chan struct{}) {
	release = make(chan struct{})
	var mu sync.Mutex
	partitions := make(map[int32]bool)
	mode = r.work(2, func(_ context.Context, _ *engine.Tx, rec *Record) error {
		mu.Lock()
		partitions[rec.Partition] = true
		mu.Unlock()
		<-release
		return nil
	})
	return mode, func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(partitions)
	}, release
}

// isSettled reports whether no queue takes more records while handlers hang.
func (m *member) isSettled() bool {
	for _, p := range m.parts.all() {
		if p.queue.IsFetched() {
			return false
		}
	}
	return true
}

// Records that become much larger when they are decompressed wait behind handlers that hang: what is in
// the queues stays within the bound.
func TestQueuesStayWithinMaxBufferedBytes(t *testing.T) {
	const partitions, n, size = 64, 600, 28 << 10 // size is that of a batch of the log
	for name, tt := range map[string]struct {
		budget int64
		begun  int // partitions
		codec  kgo.CompressionCodec
	}{
		"room for most partitions":    {16 << 20, partitions / 2, kgo.ZstdCompression()},
		"room for a few of them":      {2 << 20, 8, kgo.ZstdCompression()},
		"records without compression": {16 << 20, partitions / 2, kgo.NoCompression()},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, partitions)
			all := r.fill(t, n, size, tt.codec)
			mode, begun, release := r.hanging()
			m := r.start(t, mode, func(o *Options) { o.MaxBufferedBytes = tt.budget })
			most := int64(0)
			kafkatest.Until(t, "handlers, and an end of fetching", func() bool {
				most = max(most, m.queued())
				return begun() >= tt.begun && m.isSettled()
			})
			if all < 2*tt.budget || most > tt.budget*3/2 {
				t.Errorf("%d of %d KiB were queued, the bound is %d KiB", most>>10, all>>10, tt.budget>>10)
			}
			close(release)
			for p := range int32(partitions) {
				r.untilStored(t, p, n)
			}
			m.stop(t)
		})
	}
}

// Partitions that are not read for a while must not use up the memory: the records of others would never
// be fetched.
func TestPartitionsThatAreNotReadLeaveRoom(t *testing.T) {
	const partitions, n = 32, 200
	for name, pause := range map[string]bool{"paused": true, "stopped": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, partitions)
			r.fill(t, n, 28<<10, kgo.ZstdCompression())
			fail := func(_ context.Context, _ *engine.Tx, rec *Record) error {
				if rec.Partition > 0 {
					return Transient(errHandler)
				}
				return nil
			}
			if pause {
				fail = nil
			}
			m := r.start(t, r.work(2, fail), func(o *Options) {
				o.MaxBufferedBytes, o.backoff = 1<<20, pauseBounds{time.Minute, time.Hour}
			})
			for p := int32(1); pause && p < partitions; p++ {
				if err := m.Pause(r.topic, p); err != nil {
					t.Fatal(err)
				}
			}
			kafkatest.Until(t, "all partitions but one not to be read", func() bool {
				if pause {
					return m.metric(t, "partition_paused") == partitions-1
				}
				return len(m.Stopped()) == partitions-1
			})
			r.send(t, 0, numbered("more", 20)...)
			r.untilStored(t, 0, n+20)
			if pause {
				if err := m.Resume(r.topic); err != nil {
					t.Fatal(err)
				}
				for p := int32(1); p < partitions; p++ {
					r.untilStored(t, p, n)
				}
			}
			m.stop(t)
		})
	}
}

func TestRevokedPartitionsGiveTheirMemoryBack(t *testing.T) {
	const partitions = 8
	r := newRig(t, partitions)
	r.fill(t, 200, 28<<10, kgo.NoCompression())
	small := func(o *Options) { o.MaxBufferedBytes = 16 << 20 }
	m := r.start(t, r.work(2, nil), small)
	if err := m.Pause(r.topic); err != nil {
		t.Fatal(err)
	}
	kafkatest.Until(t, "full queues", func() bool { return m.queued() > partitions*100<<10 })
	other := r.start(t, r.work(2, nil), small)
	kafkatest.Until(t, "a rebalance", func() bool {
		return len(m.parts.all()) == partitions/2 && len(other.parts.all()) == partitions/2
	})
	kafkatest.Until(t, "the memory of the revoked partitions", func() bool { return m.shared.memory.Held() == m.queued() })
	other.stop(t)
	m.stop(t)
	if held := m.shared.memory.Held(); held != 0 {
		t.Errorf("%d bytes are held after the end of Run", held)
	}
}

// A reserved owns a queue that belongs to no assignment.
type reserved struct{}

func (reserved) Stable() int64      { return 0 }
func (reserved) IsPaused() bool     { return false }
func (reserved) Pause(func() bool)  {}
func (reserved) Resume(func() bool) {}

// reserve takes memory from the assigned partitions until the returned queue is closed.
func (m *member) reserve(bytes int) *feed.Queue {
	q := feed.NewQueue(m.shared.memory, reserved{})
	q.Start(0)
	q.Push([]*kgo.Record{{Value: make([]byte, bytes)}})
	return q
}

// The memory fills up after the partition has begun to wait for its next try.
func TestPartitionThatWaitsLeavesRoomLater(t *testing.T) {
	const most = 1 << 20
	r := newRig(t, 1)
	r.send(t, 0, numbered("", 20)...)
	fail := func(context.Context, *engine.Tx, *Record) error { return Transient(errHandler) }
	m := r.start(t, r.work(2, fail), func(o *Options) {
		o.MaxBufferedBytes, o.backoff = most, pauseBounds{time.Hour, time.Hour}
	})
	kafkatest.Until(t, "a stop", func() bool { return len(m.Stopped()) == 1 })
	if m.queued() == 0 {
		t.Fatal("nothing is queued")
	}
	q := m.reserve(most)
	kafkatest.Until(t, "room", func() bool { return m.queued() == 0 })
	q.Close()
	m.stop(t)
}

// A partition that is cut off keeps the memory of the records that its handler may still use.
func TestPartitionThatIsCutOffDropsWhatWasNotTaken(t *testing.T) {
	r := newRig(t, 1)
	c, err := New(r.eng, r.options(r.work(1, nil)))
	if err != nil {
		t.Fatal(err)
	}
	p := c.assign.newWorker(topicPartition{r.topic, 0}, nil, 0).partition
	p.queue.Start(0)
	p.queue.Push([]*kgo.Record{{Offset: 0}, {Offset: 1}, {Offset: 2}})
	p.queue.Pop(nil, 1)
	p.cut(0)
	kafkatest.Receive(t, p.released)
	if n, bytes := p.queue.Size(); n != 0 || bytes != 2*p.queue.PoppedBytes() || bytes == 0 {
		t.Errorf("%d records wait, %d bytes are held", n, bytes)
	}
}
