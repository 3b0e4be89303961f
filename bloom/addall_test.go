package bloom

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// The filter that AddAll makes is that of Add, bit for bit and with the same counts: with layers
// that become full in a call, filters that are saturated, and hashes that are repeated, also those
// of older layers.
func TestAddAllIsAddForEachHash(t *testing.T) {
	procs := runtime.GOMAXPROCS(8)
	defer runtime.GOMAXPROCS(procs)
	for _, tt := range []struct {
		o           Options
		calls, most int // hashes in a call
	}{
		{Options{}, 50, 3000},
		{Options{Expected: 100_000}, 50, 3000},
		{Options{MaxBytes: 16 << 10}, 50, 3000},
		{Options{BitsPerKey: 5}, 50, 3000},
		{Options{BitsPerKey: 64}, 5, 2 * minSorted},
		{Options{Expected: 1 << 16, BitsPerKey: 64}, 4, 2 * minSorted},
		{Options{Expected: 1<<17 + 12345, BitsPerKey: 40}, 4, 2 * minSorted},
		{Options{Expected: 1 << 16, BitsPerKey: 64, MaxBytes: 1<<20 + 192}, 4, 2 * minSorted},
		{Options{Expected: 1 << 16, BitsPerKey: 64, MaxBytes: 2<<20 + 192}, 4, 2 * minSorted},
		{Options{Expected: 1 << 16, BitsPerKey: 64, Grow: halfOfWanted}, 4, 2 * minSorted},
	} {
		t.Run(fmt.Sprintf("%d calls of %d to a filter for %d in %d bytes", tt.calls, tt.most, tt.o.Expected, tt.o.MaxBytes), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, tt.o.Expected))
			one, all := New(tt.o), New(tt.o)
			var before []uint64
			for range tt.calls {
				hashes := make([]uint64, tt.most/2+rng.IntN(tt.most/2))
				for i := range hashes {
					hashes[i] = rng.Uint64()
					switch {
					case i > 0 && rng.IntN(4) == 0:
						hashes[i] = hashes[rng.IntN(i)]
					case len(before) > 0 && rng.IntN(4) == 0:
						hashes[i] = before[rng.IntN(len(before))]
					}
				}
				for _, h := range hashes {
					one.Add(h)
				}
				before = append(before, hashes...)
				given := slices.Clone(hashes)
				all.AddAll(hashes)
				if !slices.Equal(hashes, given) {
					t.Fatal("AddAll changes the hashes")
				}
			}
			for _, h := range before {
				if !all.MayContain(h) {
					t.Fatalf("%#x was added and is missing", h)
				}
			}
			if !bytes.Equal(snapshot(all), snapshot(one)) {
				t.Errorf("another filter, with %d hashes in %d bytes, Add makes one with %d in %d", all.Len(), all.Bytes(), one.Len(), one.Bytes())
			}
		})
	}
}

func halfOfWanted(_ *Filter, want, _ uint64, add func(uint64)) { add(want / 2) }

// The filter grows with the hash that fills its newest layer, whether or not the call has more.
func TestAddAllGrowsTheFilterWhenAddDoes(t *testing.T) {
	o := Options{Expected: 1 << 17, BitsPerKey: 64} // so that no new hash looks like a repeat
	one := New(o)
	var hashes []uint64
	for size := one.Bytes(); one.Bytes() == size; {
		hashes = append(hashes, mix(uint64(len(hashes))))
		one.Add(hashes[len(hashes)-1])
	}
	for _, n := range []int{len(hashes) - 1, len(hashes)} {
		all := New(o)
		all.AddAll(hashes[:n])
		if grown := all.Bytes() == one.Bytes(); grown != (n == len(hashes)) {
			t.Errorf("after %d hashes of %d: grown %v", n, len(hashes), grown)
		}
	}
}

// A full filter that was refused to grow asks again.
func TestAddAllAsksAgainToGrow(t *testing.T) {
	may := false
	f := New(Options{Expected: 1 << 18, Grow: func(_ *Filter, want, _ uint64, add func(uint64)) {
		if may {
			add(want)
		}
	}})
	hashes := make([]uint64, 3<<17)
	for i := range hashes {
		hashes[i] = mix(uint64(i))
	}
	f.AddAll(hashes)
	if !f.Saturated() {
		t.Fatal("it has grown")
	}
	may = true
	for i := range hashes {
		hashes[i] = mix(uint64(len(hashes) + i))
	}
	f.AddAll(hashes)
	if f.Saturated() {
		t.Error("it has not grown")
	}
}

// A filter has regions of about the stated size, and not too many.
func TestRegionsFitTheCache(t *testing.T) {
	for _, blocks := range []uint64{1, 1 << 12, 1 << 13, 1<<13 + 1, 3 << 13, 12345, 1<<19 + 7, 3 << 21, 1<<30 + 1} {
		for _, older := range []uint64{0, blocks / 4 * blockBytes, blocks / 2 * blockBytes} {
			bytes := blocks*blockBytes + older
			shift := regionShift(blocks, bytes)
			regions := (blocks-1)>>shift + 1
			if regions > maxRegions {
				t.Errorf("%d blocks: %d regions", blocks, regions)
			}
			if size, most := bytes/regions, max(2*regionBytes, 2*bytes/maxRegions); size > most || size < min(bytes, most/4) {
				t.Errorf("%d blocks of %d bytes: regions of %d bytes, want at most %d", blocks, bytes, size, most)
			}
		}
	}
}
