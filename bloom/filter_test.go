package bloom

import (
	"bytes"
	"math"
	"math/bits"
	"testing"

	"pgregory.net/rapid"
)

func TestAddedHashesAreNeverMissing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := New(Options{
			Expected:   rapid.SampledFrom([]uint64{0, 1, 10, 100}).Draw(t, "expected"),
			BitsPerKey: rapid.Uint64Range(0, 70).Draw(t, "bits per key"),
			MaxBytes:   rapid.SampledFrom([]uint64{0, 0, 1, 500, 5000}).Draw(t, "cap"),
		})
		hashes := rapid.SliceOf(anyHash).Draw(t, "hashes")
		for i := range rapid.Uint64Range(0, 3000).Draw(t, "more hashes") {
			hashes = append(hashes, mix(i), mix(i/2))
		}
		seen := map[uint64]bool{}
		for _, h := range hashes {
			if f.Add(h) && seen[h] {
				t.Fatalf("Add(%#x) again says that it is new", h)
			}
			seen[h] = true
			if !f.MayContain(h) {
				t.Fatalf("%#x is missing after its Add", h)
			}
		}
		opened, _, err := open(snapshot(f))
		if err != nil {
			t.Fatal(err)
		}
		for h := range seen {
			if !f.MayContain(h) || !opened.MayContain(h) {
				t.Fatalf("%#x was added; filter %v, snapshot %v", h, f.MayContain(h), opened.MayContain(h))
			}
		}
	})
}

func TestPrefetchChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := filled(Options{Expected: rapid.SampledFrom([]uint64{1, 100, 10_000}).Draw(t, "expected")}, rapid.Uint64Range(0, 3000).Draw(t, "added"))
		before := snapshot(f)
		f.Prefetch(rapid.SliceOf(anyHash).Draw(t, "hashes"))
		if !bytes.Equal(before, snapshot(f)) {
			t.Fatal("the filter was changed")
		}
	})
}

func TestEmptyFilterContainsNothing(t *testing.T) {
	f := New(Options{})
	for i := range uint64(1000) {
		if f.MayContain(mix(i)) {
			t.Fatalf("contains %#x", mix(i))
		}
	}
	if f.Len() != 0 || f.Saturated() || f.EstimatedFPRate() != 0 {
		t.Errorf("len %d, saturated %v, rate %v", f.Len(), f.Saturated(), f.EstimatedFPRate())
	}
}

func TestOptionsAndTheirDefaults(t *testing.T) {
	tests := []struct {
		name   string
		o      Options
		bytes  uint64
		design uint64
	}{
		{"defaults", Options{}, 4 << 10, 2048},
		{"one key", Options{Expected: 1}, 64, 32},
		{"a full block", Options{Expected: 32}, 64, 32},
		{"one key more", Options{Expected: 33}, 128, 64},
		{"fewer bits than any", Options{Expected: 1280, BitsPerKey: 1}, 640, 1280},
		{"more bits than any", Options{Expected: 80, BitsPerKey: 1000}, 640, 80},
		{"bits that do not divide a block", Options{Expected: 42, BitsPerKey: 12}, 64, 42},
		{"a cap below a block", Options{MaxBytes: 1}, 64, 32},
		{"a cap below the expectation", Options{Expected: 1 << 40, MaxBytes: 1000}, 960, 480},
		{"more keys than there can be", Options{Expected: math.MaxUint64, BitsPerKey: 64, MaxBytes: 64}, 64, 8},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := New(tt.o)
			if got := f.newest.Load().design; f.Bytes() != tt.bytes || got != tt.design {
				t.Errorf("%d bytes for %d keys, want %d for %d", f.Bytes(), got, tt.bytes, tt.design)
			}
		})
	}
}

func TestRepeatsDoNotGrowTheFilter(t *testing.T) {
	const keys = 5000 // two layers and a part of the second
	f := filled(Options{}, keys)
	n, size := f.Len(), f.Bytes()
	if n < keys*99/100 {
		t.Fatalf("len %d after %d new hashes", n, keys)
	}
	for range 20 {
		for i := range uint64(keys) {
			if f.Add(mix(i)) {
				t.Fatalf("Add(%#x) again says that it is new", mix(i))
			}
		}
	}
	if f.Len() != n || f.Bytes() != size {
		t.Errorf("len %d and %d bytes, were %d and %d before the repeats", f.Len(), f.Bytes(), n, size)
	}
}

func TestFilterGrowsByLayersAtLeastTwiceAsLarge(t *testing.T) {
	f := New(Options{})
	const keys = 60_000
	for i := range uint64(keys) {
		if newest := f.newest.Load(); newest.added.Load() >= newest.design {
			t.Fatalf("newest layer holds %d, made for %d, after %d keys", newest.added.Load(), newest.design, i)
		}
		f.Add(mix(i))
	}
	for l := f.newest.Load(); l.older != nil; l = l.older {
		if len(l.blocks) < 2*len(l.older.blocks) {
			t.Errorf("%d blocks on top of %d", len(l.blocks), len(l.older.blocks))
		}
		if got := l.older.added.Load(); got != l.older.design {
			t.Errorf("a layer for %d keys was left with %d", l.older.design, got)
		}
	}
	for i := range uint64(keys) {
		if !f.MayContain(mix(i)) {
			t.Fatalf("%#x is missing", mix(i))
		}
	}
	if got, most := f.Bytes(), uint64(4*2*keys); got > most {
		t.Errorf("%d bytes for %d keys, want at most %d", got, keys, most)
	}
}

func TestLargeLayersOnlyDoubleUntilTheyAreMany(t *testing.T) {
	f := New(Options{Expected: 1})
	for _, tt := range []struct{ bytes, layers, times uint64 }{
		{fourfoldBytes / 4, 1, 4},
		{fourfoldBytes/4 + blockBytes, 1, 2},
		{fourfoldBytes, fewLayers - 1, 2},
		{fourfoldBytes, fewLayers, 4},
	} {
		var l *layer
		for range tt.layers - 1 {
			l = &layer{blocks: make([]block, 1), older: l}
		}
		l = &layer{blocks: make([]block, tt.bytes/blockBytes), older: l}
		if got := f.nextBlocks(l) * blockBytes; got != tt.times*tt.bytes {
			t.Errorf("after %d layers, the newest of %d bytes, come %d", tt.layers, tt.bytes, got)
		}
	}
}

func TestCapIsKeptAndReported(t *testing.T) {
	for _, tt := range []struct{ cap, full uint64 }{
		{4 << 10, 4 << 10},         // the first layer and no other
		{12<<10 - 1, 4 << 10},      // a second would be less than twice the first
		{12 << 10, 12 << 10},       // 4 + 8
		{20 << 10, 20 << 10},       // 4 + 16
		{84<<10 - 64, 84<<10 - 64}, // 4 + 16 + the rest
	} {
		f := New(Options{MaxBytes: tt.cap})
		var n uint64
		for ; !f.Saturated(); n++ {
			if n > tt.full/2*101/100 {
				t.Fatalf("cap %d: %d keys in %d bytes, not saturated", tt.cap, n, f.Bytes())
			}
			f.Add(mix(n))
		}
		if f.Bytes() != tt.full || f.Len() != tt.full/2 {
			t.Errorf("cap %d: saturated with %d keys in %d bytes, want %d", tt.cap, f.Len(), f.Bytes(), tt.full)
		}
		for ; n < tt.full; n++ {
			f.Add(mix(n))
		}
		if f.Bytes() != tt.full || !f.Saturated() {
			t.Errorf("cap %d: %d bytes, saturated %v, after twice the load", tt.cap, f.Bytes(), f.Saturated())
		}
		for i := range n {
			if !f.MayContain(mix(i)) {
				t.Fatalf("cap %d: %#x is missing", tt.cap, mix(i))
			}
		}
	}
}

func TestCapOfAnOpenedFilterCanChange(t *testing.T) {
	f := New(Options{MaxBytes: 12 << 10})
	n := uint64(0)
	add := func(keys uint64) {
		for range keys {
			f.Add(mix(n))
			n++
		}
	}
	add(8 << 10)
	f, _, err := open(snapshot(f))
	if err != nil {
		t.Fatal(err)
	}
	if !f.Saturated() {
		t.Error("a filter forgets that it is saturated")
	}
	f.SetMaxBytes(4 << 10)
	add(1 << 10)
	if f.Bytes() != 12<<10 || !f.Saturated() {
		t.Errorf("below its size: %d bytes, saturated %v", f.Bytes(), f.Saturated())
	}
	if f, _, err = open(snapshot(f)); err != nil || f.Bytes() != 12<<10 {
		t.Fatalf("a snapshot of a filter above its cap: %v", err)
	}
	f.SetMaxBytes(64 << 10)
	if f.Saturated() {
		t.Error("a filter that may grow is reported as saturated")
	}
	add(1 << 10)
	if f.Bytes() <= 12<<10 || f.Bytes() > 64<<10 {
		t.Errorf("with more room: %d bytes", f.Bytes())
	}
	for i := range n {
		if !f.MayContain(mix(i)) {
			t.Fatalf("%#x is missing", mix(i))
		}
	}
}

func TestFilterOfAllContainsEveryHash(t *testing.T) {
	f := All(12345)
	check := func() {
		t.Helper()
		for i := range uint64(1000) {
			if f.Add(mix(i)) || !f.MayContain(mix(i)) {
				t.Fatalf("%#x is certainly new", mix(i))
			}
		}
		if f.Len() != 12345 || f.Bytes() != blockBytes || !f.ContainsAll() || f.Saturated() {
			t.Fatalf("len %d in %d bytes, all %v, saturated %v", f.Len(), f.Bytes(), f.ContainsAll(), f.Saturated())
		}
	}
	check()
	var err error
	if f, _, err = open(snapshot(f)); err != nil {
		t.Fatal(err)
	}
	check()
	f.SetMaxBytes(1 << 30)
	check()
	for _, f := range []*Filter{New(Options{Expected: 1}), filled(Options{Expected: 1, MaxBytes: 1}, 100), filled(Options{}, 5000)} {
		if f.ContainsAll() {
			t.Errorf("a filter of %d hashes in %d bytes contains all", f.Len(), f.Bytes())
		}
	}
}

// Grow gives half of what is wanted, then nothing, then more than is wanted.
func TestGrowDecidesAboutFurtherLayers(t *testing.T) {
	var f *Filter
	asked := 0
	give := func(want, _ uint64) uint64 { return want / 2 }
	f = New(Options{Expected: 2048, Grow: func(of *Filter, want, least uint64, add func(uint64)) {
		asked++
		if of != f || want < least || least < 2*f.newest.Load().bytes() {
			t.Errorf("asked for %d to %d bytes by %p", least, want, of)
		}
		if n := give(want, least); n > 0 {
			add(n)
		}
	}})
	n := uint64(0)
	add := func(keys uint64) {
		for range keys {
			f.Add(mix(n))
			n++
		}
	}
	add(2047)
	if asked != 0 || f.Saturated() {
		t.Fatalf("asked %d times before the first layer was full", asked)
	}
	add(2)
	if asked != 1 || f.Bytes() != 4096+8192 || f.Saturated() {
		t.Fatalf("asked %d times, %d bytes", asked, f.Bytes())
	}
	give = func(uint64, uint64) uint64 { return 0 }
	add(4 * 4096)
	if asked > 1+4*10 || f.Bytes() != 4096+8192 || !f.Saturated() {
		t.Fatalf("asked %d times, %d bytes, saturated %v", asked, f.Bytes(), f.Saturated())
	}
	before, of := asked, f
	f, _, err := open(snapshot(f))
	if err != nil || f.Saturated() {
		t.Fatalf("without Grow it is saturated, or %v", err)
	}
	b := snapshot(of)
	if f, err = Read(bytes.NewReader(b), int64(len(b)), of.o); err != nil || !f.Saturated() || asked != before {
		t.Fatalf("a filter forgets that it is saturated, or asks %d times when it is opened: %v", asked-before, err)
	}
	give = func(want, _ uint64) uint64 { return 3 * want }
	add(1000)
	if f.Bytes() != 4096+8192+3*4*8192 || f.Saturated() {
		t.Fatalf("%d bytes, saturated %v", f.Bytes(), f.Saturated())
	}
	for i := range n {
		if !f.MayContain(mix(i)) {
			t.Fatalf("%#x is missing", mix(i))
		}
	}
}

func TestNoFilterHasMoreThanTenLayers(t *testing.T) {
	f := New(Options{Expected: 1})
	for range 9 { // fill layer after layer, without the keys
		l := f.newest.Load()
		l.added.Store(l.design)
		if f.Saturated() {
			t.Fatalf("saturated with %d layers", l.chainLen())
		}
		f.newest.Store(&layer{blocks: make([]block, 1), design: 8, older: l}) // the sizes of real ones would not fit
	}
	l := f.newest.Load()
	l.added.Store(l.design)
	if got := l.chainLen(); got != maxLayers || f.nextBlocks(l) != 0 || !f.Saturated() {
		t.Fatalf("%d layers, the next of %d blocks, saturated %v", got, f.nextBlocks(l), f.Saturated())
	}
	for i := range uint64(100) {
		f.Add(mix(i))
	}
	if got := f.newest.Load().chainLen(); got != maxLayers {
		t.Fatalf("%d layers", got)
	}
}

func TestFalsePositiveRate(t *testing.T) {
	const expected = 1 << 14
	tests := []struct {
		name       string
		bitsPerKey uint64
		keys       uint64
		most       float64
	}{
		{"16 bits, as many keys as expected", 16, expected, 0.0012},
		{"12 bits, as many keys as expected", 12, expected, 0.005},
		{"16 bits, four times as many", 16, 4 * expected, 0.003},
		{"16 bits, twenty times as many", 16, 20 * expected, 0.004},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := filled(Options{Expected: expected, BitsPerKey: tt.bitsPerKey}, tt.keys)
			const asked = 1 << 18
			hits := 0
			for i := range uint64(asked) {
				if f.MayContain(mix(tt.keys + i)) {
					hits++
				}
			}
			rate, estimate := float64(hits)/asked, f.EstimatedFPRate()
			t.Logf("measured %.3f %%, estimated %.3f %%, %d bytes", 100*rate, 100*estimate, f.Bytes())
			if rate > tt.most {
				t.Errorf("measured %.4f, want at most %.4f", rate, tt.most)
			}
			if math.Abs(estimate-rate) > rate/5 {
				t.Errorf("estimated %.5f, measured %.5f", estimate, rate)
			}
			if got := float64(f.Len()) / float64(tt.keys); got < 1-tt.most || got > 1 {
				t.Errorf("len is %.4f of the keys added", got)
			}
		})
	}
}

func TestEstimateOfALargeLayerSamplesAllOfIt(t *testing.T) {
	l := newLayer(4*sampleBlocks, defaultBitsPerKey, nil)
	for i := range l.blocks[:sampleBlocks] {
		for lane := range lanes {
			l.blocks[i][lane] = math.MaxUint64
		}
	}
	if got := l.fpRate(); got != 0.25 {
		t.Errorf("a quarter of the blocks is full, estimated rate %v", got)
	}
}

func TestEveryBlockAndLaneIsUsedEvenly(t *testing.T) {
	const keys = 1 << 18
	l := newLayer(64, minBitsPerKey, nil)
	var blocks [64]int
	var bitsOfLane [lanes][64]int
	for i := range uint64(keys) {
		b := l.blockOf(mix(i))
		for n := range l.blocks {
			if b == &l.blocks[n] {
				blocks[n]++
			}
		}
		for lane := range lanes {
			bitsOfLane[lane][bits.TrailingZeros64(bit(mix(i), lane))]++
		}
	}
	even := func(what string, n int) {
		if mean := keys / 64; n < mean*9/10 || n > mean*11/10 {
			t.Errorf("%s has %d of %d, want about %d", what, n, keys, mean)
		}
	}
	for _, n := range blocks {
		even("a block", n)
	}
	for lane := range bitsOfLane {
		for _, n := range bitsOfLane[lane] {
			even("a bit of a lane", n)
		}
	}
}

// anyHash draws hashes that collide: in value, in block, in lanes.
var anyHash = rapid.OneOf(
	rapid.Uint64(),
	rapid.Uint64Range(0, 20),
	rapid.Map(rapid.Uint64Range(0, 20), func(n uint64) uint64 { return n << 60 }),
	rapid.Just(uint64(math.MaxUint64)),
)

func TestAddNewAddsAsAddDoes(t *testing.T) {
	const n = 50_000
	one, other := New(Options{}), New(Options{})
	hashes := make([]uint64, n)
	for i := range hashes {
		hashes[i] = mix(uint64(i))
	}
	other.PrefetchNew(hashes[:64])
	for _, h := range hashes {
		one.Add(h)
		other.AddNew(h)
	}
	for _, h := range hashes {
		if !other.MayContain(h) {
			t.Fatalf("hash %x is missing", h)
		}
	}
	// Both leave out the few that they find by mistake.
	if got := other.Len(); got > n || got < one.Len() || one.Len() < n*99/100 || one.Bytes() != other.Bytes() {
		t.Errorf("%d hashes in %d bytes; Add: %d in %d", got, other.Bytes(), one.Len(), one.Bytes())
	}
	before := other.Len()
	other.AddNew(hashes[n-1])
	if got := other.Len(); got != before {
		t.Errorf("%d hashes after a repeat, %d before", got, before)
	}
	all := All(10)
	for _, h := range hashes {
		all.AddNew(h)
	}
	if !all.ContainsAll() || all.Len() != 10 {
		t.Errorf("a filter of every hash has %d", all.Len())
	}
}
