package pebble

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Few keys in each bucket, so that buckets often become empty and are claimed again.
func TestBucketsOfAHistory(t *testing.T) {
	for seed := range uint64(8) {
		fs := vfs.NewMem()
		s := openSmall(t, fs)
		r := rng(seed)
		want := map[storage.Bucket]map[uint64]bool{}
		oldest := 0
		for seq := uint64(1); seq <= 300; seq++ {
			b := &storage.Batch{Seq: seq}
			written := map[string]bool{}
			for range 1 + r.IntN(3) {
				bucket := storage.Bucket{Scope: fmt.Sprint("scope", r.IntN(4)), Week: week0}
				week, id := oldest+r.IntN(3), uint64(r.IntN(3))
				bucket.Week += weekbucket.Week(week)
				w := storage.ClaimWrite{Key: claimKey(bucket.Scope, week, id), Record: []byte("r")}
				if written[string(w.Key)] {
					continue
				}
				written[string(w.Key)] = true
				if want[bucket] == nil {
					want[bucket] = map[uint64]bool{}
				}
				if want[bucket][id] = r.IntN(2) == 0; !want[bucket][id] {
					w.Record = nil
				}
				b.Claims = append(b.Claims, w)
			}
			mustApply(t, s, b)
			s = afterBatch(t, r, fs, s)
			if r.IntN(20) == 0 {
				var drop []storage.Bucket
				for i := range 4 {
					drop = append(drop, storage.Bucket{Scope: fmt.Sprint("scope", i), Week: week0 + weekbucket.Week(oldest)})
					delete(want, drop[i])
				}
				if err := s.Drop(drop); err != nil {
					t.Fatal(err)
				}
				oldest++
			}
			if r.IntN(4) == 0 {
				wantBuckets(t, s, want)
			}
		}
		wantBuckets(t, s, want)
		mustClose(t, s)
	}
}

// afterBatch freezes the table in memory, seals it or opens the store again, now and then.
func afterBatch(t *testing.T, r *rand.Rand, fs vfs.FS, s *Store) *Store {
	switch r.IntN(40) {
	case 0, 1, 2:
		s.sealer.freeze()
	case 3, 4:
		mustSealAll(t, s)
	case 5:
		mustClose(t, s)
		return openSmall(t, fs)
	}
	return s
}

func wantBuckets(t *testing.T, s *Store, claims map[storage.Bucket]map[uint64]bool) {
	t.Helper()
	var want, got []storage.Bucket
	for b, ids := range claims {
		for _, claimed := range ids {
			if claimed {
				want = append(want, b)
				break
			}
		}
	}
	slices.SortFunc(want, func(a, b storage.Bucket) int {
		return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Week, b.Week))
	})
	if err := s.Buckets(func(b storage.Bucket) error { got = append(got, b); return nil }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%d buckets, want %d:\n%v\n%v", len(got), len(want), got, want)
	}
}

// Listing the buckets of a store with many runs, the first time and again.
//
//	go test ./engine/pebble -run - -bench Buckets -benchtime 20x
func BenchmarkBuckets(b *testing.B) {
	for _, weeks := range []int{4, 16} {
		dir := b.TempDir() + "/store"
		s, err := Open(dir, Options{FS: vfs.Default, CacheBytes: 8 << 20})
		if err != nil {
			b.Fatal(err)
		}
		seq := uint64(0)
		for range 40 {
			for i := range 20 {
				seq++
				batch := &storage.Batch{Seq: seq}
				for k := range uint64(5000) {
					key := claimKey(fmt.Sprintf("scope%03d", k%200), int(k/200)%weeks, seq*5000+k)
					batch.Claims = append(batch.Claims, storage.ClaimWrite{Key: key, Record: []byte("record of 12")})
				}
				mustApply(b, s, batch)
				if i == 19 {
					mustSealAll(b, s)
				}
			}
		}
		list := func(b *testing.B) {
			n := 0
			if err := s.Buckets(func(storage.Bucket) error { n++; return nil }); err != nil || n != 200*weeks {
				b.Fatal(n, err)
			}
		}
		b.Run(fmt.Sprintf("first/%d", 200*weeks), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				mustClose(b, s)
				s = mustOpen(b, vfs.Default, dir, false)
				b.StartTimer()
				list(b)
			}
		})
		b.Run(fmt.Sprintf("again/%d", 200*weeks), func(b *testing.B) {
			for b.Loop() {
				list(b)
			}
		})
		mustClose(b, s)
	}
}
