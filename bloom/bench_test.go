package bloom

import (
	"io"
	"slices"
	"strconv"
	"testing"
)

const benchKeys = 8 << 20

func BenchmarkAdd(b *testing.B) {
	f := New(Options{Expected: benchKeys})
	n := uint64(0)
	for b.Loop() {
		if n%benchKeys == 0 && n > 0 {
			b.StopTimer()
			f = New(Options{Expected: benchKeys})
			b.StartTimer()
		}
		f.Add(mix(n))
		n++
	}
}

func BenchmarkHit(b *testing.B) {
	f := filled(Options{Expected: benchKeys}, benchKeys)
	n := uint64(0)
	for b.Loop() {
		if !f.MayContain(mix(n % benchKeys)) {
			b.Fatal("false negative")
		}
		n++
	}
}

func BenchmarkMiss(b *testing.B) {
	benchMiss(b, filled(Options{Expected: benchKeys}, benchKeys))
}

// The same keys in the layers of a filter that was made without Options.Expected.
func BenchmarkMissGrown(b *testing.B) {
	benchMiss(b, filled(Options{}, benchKeys))
}

// The same after Prefetch of 256 keys at a time.
func BenchmarkMissGrownPrefetched(b *testing.B) {
	f := filled(Options{}, benchKeys)
	hashes := make([]uint64, 256)
	n := 0
	for b.Loop() {
		at := n % len(hashes)
		if at == 0 {
			for i := range hashes {
				hashes[i] = mix(uint64(benchKeys + n + i))
			}
			f.Prefetch(hashes)
		}
		f.MayContain(hashes[at])
		n++
	}
}

// fp/op is the share of misses that were answered "maybe".
func benchMiss(b *testing.B, f *Filter) {
	n, hits := uint64(benchKeys), 0
	for b.Loop() {
		if f.MayContain(mix(n)) {
			hits++
		}
		n++
	}
	b.ReportMetric(float64(hits)/float64(b.N), "fp/op")
}

func filled(o Options, n uint64) *Filter {
	f := New(o)
	for i := range n {
		f.Add(mix(i))
	}
	return f
}

// mix is the finalizer of SplitMix64: a bijection, so different i give
// different hashes.
func mix(i uint64) uint64 {
	i += 0x9e3779b97f4a7c15
	i = (i ^ i>>30) * 0xbf58476d1ce4e5b9
	i = (i ^ i>>27) * 0x94d049bb133111eb
	return i ^ i>>31
}

func BenchmarkSnapshot(b *testing.B) {
	f := filled(Options{Expected: benchKeys}, benchKeys)
	b.SetBytes(int64(f.Bytes()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.WriteTo(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	whole := snapshot(filled(Options{Expected: benchKeys}, benchKeys))
	b.SetBytes(int64(len(whole)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := open(whole); err != nil {
			b.Fatal(err)
		}
	}
}

// Hashes are added to a filter of three layers that is larger than the processor's cache, at most
// the given number with one call. ns/hash is the time of a hash.
func BenchmarkAddAll(b *testing.B) {
	const keys = 4 * benchKeys
	whole := snapshot(filled(Options{Expected: benchKeys / 8}, keys))
	hashes := make([]uint64, benchKeys)
	for i := range hashes {
		hashes[i] = mix(uint64(keys + i))
	}
	for _, each := range []int{1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 21, benchKeys} {
		b.Run(strconv.Itoa(each), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				f, _, err := open(whole)
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				for part := range slices.Chunk(hashes, each) {
					f.AddAll(part)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchKeys, "ns/hash")
		})
	}
}
