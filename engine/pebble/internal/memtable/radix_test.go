package memtable

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
)

// The radix sort puts entries into the order of their keys, whatever these have in common.
func TestRadixSortIsByKey(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	tails := map[string]func(bucket, table int) []byte{
		"random":       func(int, int) []byte { return random(rng, 16) },
		"a tag first":  func(int, int) []byte { return append([]byte{2}, random(rng, 16)...) },
		"near in time": func(int, int) []byte { return fmt.Appendf(nil, "\x00\x00\x01%03d%04d", rng.IntN(200), rng.IntN(100)) },
		"equal heads":  func(int, int) []byte { return fmt.Appendf(nil, "the same head %d", rng.IntN(1000)) },
		"equal longer": func(int, int) []byte {
			return append(make([]byte, 20, 40), random(rng, rng.IntN(20))...)
		},
		"one long key": func(int, int) []byte { return make([]byte, 1000) },
		"zeros at end": func(int, int) []byte { return append([]byte("payment-0042"), make([]byte, rng.IntN(20))...) },
		"a url":        func(int, int) []byte { return fmt.Appendf(nil, "https://shop.example.com/orders/%d", rng.IntN(1e9)) },
		"a form for each bucket": func(bucket, _ int) []byte {
			if bucket > 0 {
				return fmt.Appendf(nil, "the head of bucket %d, then %d", bucket, rng.IntN(1e9))
			}
			return random(rng, 16)
		},
		"a form for each table": func(_, table int) []byte { return fmt.Appendf(nil, "in the table %d it is %d", table, rng.IntN(1e9)) },
		"short":                 func(int, int) []byte { return random(rng, rng.IntN(3)) },
		"two far away":          func(int, int) []byte { return append([]byte{byte(255 * (rng.IntN(500) / 499))}, random(rng, 9)...) },
	}
	for name, tail := range tails {
		for _, n := range []int{0, 1, radixFewest - 1, radixFewest, 4999, 5000} {
			u := New(1 << 30)
			for i := range n {
				if i == n/2 {
					u.Freeze()
				}
				bucket := rng.IntN(3)
				b := storage.Bucket{Scope: fmt.Sprint(bucket), Week: week0}
				if n%2 == 0 { // a tail without bytes: the others have none in common
					u.Apply(uint64(i+1), []storage.ClaimWrite{{Key: b.AppendPrefix(nil), Record: []byte{1}}})
				}
				u.Apply(uint64(i+1), []storage.ClaimWrite{{Key: append(b.AppendPrefix(nil), tail(bucket, 2*i/n)...), Record: []byte{2}}})
			}
			s := momentOf(u.tables()).unsorted(storage.Span{})
			want := slices.Clone(s.refs)
			slices.SortFunc(want, func(a, b ref) int { // by the keys alone, and then the newest first
				return cmp.Or(strings.Compare(s.prefixes[a.place>>1], s.prefixes[b.place>>1]), bytes.Compare(s.entry(a).tail, s.entry(b).tail),
					cmp.Compare(a.place&1, b.place&1), cmp.Compare(b.off, a.off))
			})
			rng.Shuffle(len(s.refs), func(i, j int) { s.refs[i], s.refs[j] = s.refs[j], s.refs[i] })
			if s.sort(); !slices.Equal(s.refs, want) {
				t.Errorf("%s, %d: not in the order of the keys", name, n)
			}
		}
	}
}

func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// BenchmarkSort compares the radix sort with the comparison, for a table of a million claims.
func BenchmarkSort(b *testing.B) {
	rng := rand.New(rand.NewPCG(4, 4))
	for form, id := range map[string]func() []byte{
		"random":   func() []byte { return random(rng, 16) },
		"prefixed": func() []byte { return fmt.Appendf(nil, "payment-%016x", rng.Uint64()) },
		"url":      func() []byte { return fmt.Appendf(nil, "https://shop.example.com/api/v1/orders/%020d", rng.Uint64()) },
	} {
		u := New(1 << 30)
		bucket := storage.Bucket{Scope: "scope", Week: week0}
		for i := range uint64(1_000_000) {
			u.Apply(i+1, []storage.ClaimWrite{{Key: bucket.AppendKey(nil, id()), Record: []byte("twelve bytes")}})
		}
		s := momentOf(u.tables()).unsorted(storage.Span{})
		refs := slices.Clone(s.refs)
		sorts := map[string]func(){"radix": s.sort, "comparison": func() { slices.SortFunc(s.refs, s.compare) }}
		for name, sort := range sorts {
			b.Run(form+"/"+name, func(b *testing.B) {
				for b.Loop() {
					copy(s.refs, refs)
					sort()
				}
			})
		}
	}
}
