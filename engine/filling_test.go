package engine

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/hapax-dev/hapax/weekbucket"
)

// A filling makes the filters that adding hash after hash makes.
func TestFillingAddsEveryHashInOrder(t *testing.T) {
	for _, hashes := range []int{0, 1, fillingHashes - 1, fillingHashes, 3*fillingHashes + 7} {
		rng := rand.New(rand.NewPCG(1, 2))
		want := newScreen(Options{MaxFilterBytes: 1 << 20, ExpectedPerWeek: 1000})
		got := newScreen(Options{MaxFilterBytes: 1 << 20, ExpectedPerWeek: 1000})
		f := startFilling(got)
		week := weekbucket.Week(3000)
		for range hashes {
			if rng.IntN(100) == 0 {
				week = weekbucket.Week(3000 + rng.IntN(5))
			}
			h := rng.Uint64()
			want.filter(week).Add(h)
			f.add(week, h)
		}
		f.finish()
		if g, w := len(*got.filters.Load()), len(*want.filters.Load()); g != w {
			t.Fatalf("%d hashes: filters of %d weeks, want %d", hashes, g, w)
		}
		for week, filter := range *want.filters.Load() {
			var a, b bytes.Buffer
			if _, err := filter.WriteTo(&a); err != nil {
				t.Fatal(err)
			}
			if _, err := got.filter(week).WriteTo(&b); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(a.Bytes(), b.Bytes()) {
				t.Errorf("%d hashes: the filter of %s is another one", hashes, week)
			}
		}
	}
}
