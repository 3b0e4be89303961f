package feed

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// read is a batch of the log that the client has fetched.
func read(m *Memory, compressed, decompressed, records int) {
	m.OnFetchBatchRead(kgo.BrokerMetadata{}, "in", 0, kgo.FetchBatchMetrics{CompressedBytes: compressed, UncompressedBytes: decompressed, NumRecords: records})
}

// Partitions that have no records take nothing from the others.
func TestShareDependsOnPartitionsThatWantRecords(t *testing.T) {
	m := NewMemory(128<<20, 1000)
	for wanting, share := range map[int]int64{0: 4 << 20, 1: 4 << 20, 16: 4 << 20, 64: 1 << 20} {
		m.plan(wanting, wanting, 1, Plan{1 << 20, 1 << 20})
		if got := m.share.Load(); got != share {
			t.Errorf("of %d partitions that want records each may hold %d bytes, want %d", wanting, got, share)
		}
		if got, want := m.batch.Load(), int64(32<<20)/int64(max(1, wanting)); got != want {
			t.Errorf("of %d partitions that want records each may take %d bytes at once, want %d", wanting, got, want)
		}
	}
}

func TestPlanFollowsTheRatioAndWhatIsLeft(t *testing.T) {
	const mib = 1 << 20
	m, limits := NewMemory(128*mib, 1000), Plan{4 * mib, mib}
	if p := m.plan(256, 256, 1, limits); p.Partition > 128*mib/2/256/8 {
		t.Errorf("before anything is known, a partition may be fetched %d bytes", p.Partition)
	}
	read(m, 1000, 1500, 0) // not decompressed
	read(m, mib, 2*mib-recordMemory, 1)
	m.Polled()
	if p := m.plan(2, 2, 1, limits); p != limits {
		t.Errorf("while there is room: %+v", p)
	}
	read(m, mib, 20*mib-recordMemory, 1)
	m.Polled() // a higher ratio counts at once
	if p, want := m.plan(64, 64, 2, limits), (Plan{128 * mib / 2 / 2 / 20, mib / 20}); p != want {
		t.Errorf("at a ratio of 20: %+v, want %+v", p, want)
	}
	m.hold(64 * mib)
	if p, want := m.plan(64, 64, 2, limits), (Plan{64 * mib / 2 / 2 / 20, mib / 20}); p != want {
		t.Errorf("if half is used up: %+v, want %+v", p, want)
	}
	read(m, mib, 60*mib, 1)
	if p := m.plan(64, 64, 2, limits); p.Fetch > mib/20 || p.Partition > p.Fetch {
		t.Errorf("if the client has the other half: %+v", p)
	}
	m.hold(64 * mib)
	if p, want := m.plan(64, 64, 2, limits), (Plan{1, 1}); p != want {
		t.Errorf("if all is used up: %+v, want %+v", p, want)
	}
}

// A broker returns nothing of a partition whose next batch exceeds the plan, unless it is the first in the
// answer: of 10,000 partitions with batches of 16 KiB, an answer would have one.
func TestOneFetchOfManyPartitionsHasManyBatches(t *testing.T) {
	const mib, wanting = 1 << 20, 10000
	m, limits := NewMemory(128*mib, 1000), Plan{4 * mib, mib}
	for _, batch := range []int{0, 500, 16 << 10, 100 << 10} { // 0: before anything is known
		for range 50 {
			if batch > 0 {
				read(m, batch, 4*batch, 10)
				m.Polled()
			}
		}
		for _, known := range []int{200, wanting} { // some of them are not looked up yet
			p := m.plan(known, wanting, 1, limits)
			if least := max(batch, 16<<10); int(p.Partition) < least || p.Partition > limits.Fetch/16 {
				t.Errorf("batches of %d bytes: %d bytes may be fetched of a partition, want %d to %d", batch, p.Partition, least, limits.Fetch/16)
			}
		}
	}
	m.hold(128 * mib)
	if p := m.plan(wanting, wanting, 1, limits); p.Fetch != 1 || p.Partition < 100<<10 { // the session would keep a smaller limit until the offset moves
		t.Errorf("if all is used up: %+v", p)
	}
}

// While little is held, many partitions that each have some records are neither full nor handled a few records
// at a time.
func TestQueuesTakePartOfUnusedMemory(t *testing.T) {
	m := NewMemory(128<<20, 4000)
	m.plan(10000, 10000, 1, Plan{1 << 20, 1 << 20})
	q, _ := opened(m, 1000)
	q.Push(records(200, 200))
	if !q.room() {
		t.Error("the queue is full")
	}
	if recs, _ := q.Pop(nil, 200); len(recs) != 200 || !q.room() {
		t.Errorf("%d records were taken at once, room %v", len(recs), q.room())
	}
	q.Pop(nil, 1)
	m.hold(m.most / 2)
	q.Push(records(200, 200))
	if recs, _ := q.Pop(nil, 200); len(recs) == 0 || len(recs) > 20 || q.room() {
		t.Errorf("half is held: %d records were taken at once, room %v", len(recs), q.room())
	}
}

// An almost empty memory has no full queue: the flow need not look.
func TestAlmostEmptyMemoryHasNoFullQueue(t *testing.T) {
	for _, recordsOf := range []int{4, 512, 4000} {
		for _, most := range []int64{64 << 10, 1 << 20, 128 << 20} {
			m := NewMemory(most, recordsOf)
			m.plan(10000, 10000, 1, Plan{1 << 20, 1 << 20})
			q, _ := opened(m, 1<<40)
			for m.isAlmostEmpty() {
				if !q.room() {
					t.Fatalf("%d of %d bytes are held, and a queue of %d records is full", m.held.Load(), most, recordsOf)
				}
				q.Push(records(1, 10))
			}
		}
	}
}

func TestMemoryIsFullUntilThereIsRoom(t *testing.T) {
	m := NewMemory(1<<20, 1000)
	for _, tt := range []struct {
		hold       int64
		full, room bool
	}{{0, false, true}, {1<<20 - 1, false, false}, {1, true, false}, {-1, false, false}, {-1 << 17, false, true}} {
		if m.hold(tt.hold); m.IsFull() != tt.full || m.hasRoom() != tt.room {
			t.Errorf("%d held: full %v, room %v", m.held.Load(), m.IsFull(), m.hasRoom())
		}
	}
}
