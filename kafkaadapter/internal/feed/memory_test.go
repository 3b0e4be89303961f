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
		m.plan(wanting, 1, Plan{1 << 20, 1 << 20})
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
	if p := m.plan(256, 1, limits); p.Partition > 128*mib/2/256/8 {
		t.Errorf("before anything is known, a partition may be fetched %d bytes", p.Partition)
	}
	read(m, 1000, 1500, 0) // not decompressed
	read(m, mib, 2*mib-recordMemory, 1)
	m.Polled()
	if p := m.plan(2, 1, limits); p != limits {
		t.Errorf("while there is room: %+v", p)
	}
	read(m, mib, 20*mib-recordMemory, 1)
	m.Polled() // a higher ratio counts at once
	if p, want := m.plan(64, 2, limits), (Plan{128 * mib / 2 / 2 / 20, mib / 20}); p != want {
		t.Errorf("at a ratio of 20: %+v, want %+v", p, want)
	}
	m.hold(64 * mib)
	if p, want := m.plan(64, 2, limits), (Plan{64 * mib / 2 / 2 / 20, mib / 20}); p != want {
		t.Errorf("if half is used up: %+v, want %+v", p, want)
	}
	read(m, mib, 60*mib, 1)
	if p := m.plan(64, 2, limits); p.Fetch > mib/20 || p.Partition > p.Fetch {
		t.Errorf("if the client has the other half: %+v", p)
	}
	m.hold(64 * mib)
	if p, want := m.plan(64, 2, limits), (Plan{1, 1}); p != want {
		t.Errorf("if all is used up: %+v, want %+v", p, want)
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
