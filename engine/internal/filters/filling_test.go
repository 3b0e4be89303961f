package filters

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hapax-dev/hapax/weekbucket"
)

// A filling makes the filters that adding hash after hash makes, week after week.
func TestFillingAddsEveryHashInOrder(t *testing.T) {
	const limit = minFillingHashes
	for _, tt := range []struct {
		hashes, run, weeks int
		expected           uint64
	}{
		{0, 1, 1, 1000},
		{1, 1, 1, 1000},
		{limit - 1, 1, 1, 1000},
		{limit, 1, 1, 1000},
		{3*limit + 7, 1000, 1, 1000},
		{3*limit + 7, 3, 5, 1000},
		{3*limit + 7, 2000, 3, 1 << 20}, // large filters
		{limit / 2, 1, 1000, 1},
	} {
		t.Run(fmt.Sprintf("%d hashes, %d at once, of %d weeks", tt.hashes, tt.run, tt.weeks), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			want, got := New(1<<30, tt.expected), New(1<<30, tt.expected)
			for week := range tt.weeks { // the size of a filter depends on those that were there
				want.weeks.of(weekbucket.Week(3000 + week))
				got.weeks.of(weekbucket.Week(3000 + week))
			}
			f := startFilling(&got.weeks)
			for n := 0; n < tt.hashes; {
				week := weekbucket.Week(3000 + rng.IntN(tt.weeks))
				var run []byte
				for range min(1+rng.IntN(tt.run), tt.hashes-n) {
					h := rng.Uint64()
					want.weeks.of(week).Add(h)
					run = binary.BigEndian.AppendUint64(run, h)
					n++
				}
				if hashes := f.add(week, run); !bytes.Equal(encoded(hashes), run) {
					t.Fatalf("a run of %x is added as %x", run, hashes)
				}
			}
			f.finish()
			if g, w := len(*got.weeks.filters.Load()), len(*want.weeks.filters.Load()); g != w {
				t.Fatalf("filters of %d weeks, want %d", g, w)
			}
			for week, filter := range *want.weeks.filters.Load() {
				if !bytes.Equal(written(t, filter), written(t, got.weeks.of(week))) {
					t.Errorf("the filter of %s is another one", week)
				}
			}
		})
	}
}

// Where the budget is short, the filters contain every hash, whichever are evicted.
func TestFillingLosesNothingWithinASmallBudget(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := New(256<<10, 1000)
	f := startFilling(&s.weeks)
	added := make(map[weekbucket.Week][]uint64)
	for range 300 {
		week := weekbucket.Week(3000 + rng.IntN(20))
		var run []byte
		for range 1 + rng.IntN(2000) {
			run = binary.BigEndian.AppendUint64(run, rng.Uint64())
		}
		added[week] = append(added[week], f.add(week, run)...)
	}
	f.finish()
	if bytes, _, evicted := s.weeks.size(); bytes > s.weeks.budget || evicted == 0 {
		t.Errorf("%d bytes of %d, %d evicted", bytes, s.weeks.budget, evicted)
	}
	for week, hashes := range added {
		for _, h := range hashes {
			if !s.weeks.of(week).MayContain(h) {
				t.Fatalf("%s: %#x is missing", week, h)
			}
		}
	}
}

func encoded(hashes []uint64) (b []byte) {
	for _, h := range hashes {
		b = binary.BigEndian.AppendUint64(b, h)
	}
	return b
}
