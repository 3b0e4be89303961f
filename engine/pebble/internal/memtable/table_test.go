package memtable

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

// someKeys are keys that a table has to distinguish: those of engines, and arbitrary ones.
func someKeys() (keys [][]byte) {
	for _, scope := range []string{"a", "ab", "a\x00", "\x00", "a\xff"} {
		for week := range 2 {
			for i := range uint64(20) {
				keys = append(keys, claimKey(scope, week, i))
			}
			prefix, _ := SplitPrefix(claimKey(scope, week, 0))
			keys = append(keys, prefix, append(bytes.Clone(prefix), 0), append(bytes.Clone(prefix), 0, 1))
		}
	}
	for _, foreign := range []string{"a", "a\x00", "a\x00\x01", "a\x00\x01abc", "\x00", "\x00\x01", "a\x00\x02b", "ab"} {
		keys = append(keys, []byte(foreign))
	}
	return keys
}

func TestAPrefixIsThatOfTheBucket(t *testing.T) {
	for _, scope := range []string{"a", "a\x00b", "\x00", "\xff\x00\x01", "long scope"} {
		key := claimKey(scope, 1, 7)
		b, tail, err := storage.SplitKey(key)
		if err != nil {
			t.Fatal(err)
		}
		prefix, own := SplitPrefix(key)
		if !bytes.Equal(prefix, b.AppendPrefix(nil)) || !bytes.Equal(own, tail) {
			t.Errorf("%x is split into %x and %x", key, prefix, own)
		}
	}
}

// A random run of writes, removals, drops and freezes against a map, and a moment in it that does
// not change.
func TestTablesAgreeWithAMap(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		u := New(1 << 20)
		keys := someKeys()
		want := map[string]string{} // "-" is a removal
		var old *Sorted
		var oldWant map[string]string
		for seq := uint64(1); seq <= 60; seq++ {
			var claims []storage.ClaimWrite
			for range 1 + rng.IntN(40) {
				key := keys[rng.IntN(len(keys))]
				w := storage.ClaimWrite{Key: key, Record: fmt.Appendf(nil, "record %d", rng.IntN(1000))}
				want[string(key)] = string(w.Record)
				switch rng.IntN(8) {
				case 0:
					w.Record = nil
					want[string(key)] = "-"
				case 1:
					w.Record = []byte{}
					want[string(key)] = ""
				}
				claims = append(claims, w)
			}
			u.Apply(seq, claims)
			switch rng.IntN(12) {
			case 0:
				prefix, _ := SplitPrefix(keys[rng.IntN(len(keys))])
				u.Drop([]string{string(prefix)})
				maps.DeleteFunc(want, func(k, _ string) bool {
					own, _ := SplitPrefix([]byte(k))
					return bytes.Equal(own, prefix)
				})
			case 1:
				u.Freeze() // the first time: it is not sealed
			case 2:
				old = momentOf(u.tables()).Sorted(storage.Span{})
				oldWant = maps.Clone(want)
			}
			agree(t, u, keys, want)
		}
		if old != nil && !maps.Equal(asMap(t, old), oldWant) {
			t.Fatalf("seed %d: a moment has changed", seed)
		}
	}
}

func agree(t *testing.T, u *Memtable, keys [][]byte, want map[string]string) {
	t.Helper()
	some := map[string]bool{}
	for _, key := range keys {
		record, known := u.Get(key)
		w, there := want[string(key)]
		if got := string(record); known != there || known && (record == nil) != (w == "-") || record != nil && got != w {
			t.Fatalf("%x is %q %v, want %q %v", key, record, known, w, there)
		}
		prefix, _ := SplitPrefix(key)
		some[string(prefix)] = some[string(prefix)] || there && w != "-"
	}
	view, _ := u.View(func(*View) error { return nil })
	defer view.Release()
	if got := asMap(t, view.Moment().Sorted(storage.Span{})); !maps.Equal(got, want) {
		t.Fatalf("sorted: %q, want %q", got, want)
	}
	for prefix, want := range some {
		if got := view.HoldsSome(prefix); got != want {
			t.Fatalf("bucket %x holds some: %v, want %v", prefix, got, want)
		}
	}
}

// asMap checks the order.
func asMap(t *testing.T, s *Sorted) map[string]string {
	t.Helper()
	m := map[string]string{}
	var last []byte
	i := 0
	for key, record := range s.All(0) {
		key = bytes.Clone(key[1:])
		if !bytes.Equal(s.Key(nil, i), key) || s.Search(key) != i {
			t.Fatalf("claim %d is %x, and %x is found at %d", i, s.Key(nil, i), key, s.Search(key))
		}
		i++
		if last != nil && bytes.Compare(last, key) >= 0 {
			t.Fatalf("%x comes after %x", key, last)
		}
		last = key
		m[string(key)] = "-"
		if record != nil {
			m[string(key)] = string(record)
		}
	}
	return m
}

func TestATableGrows(t *testing.T) {
	u := New(1 << 30)
	const n = 20_000
	var claims []storage.ClaimWrite
	for i := range uint64(n) {
		claims = append(claims, storage.ClaimWrite{Key: claimKey("a", 0, i), Record: fmt.Append(nil, i)})
	}
	u.Apply(1, claims[:1])
	u.Apply(2, claims[1:n/2]) // more than there are slots
	for i := range claims[n/2:] {
		u.Apply(uint64(i+3), claims[n/2+i:n/2+i+1])
	}
	for i := range uint64(n) {
		if record, known := u.Get(claimKey("a", 0, i)); !known || string(record) != fmt.Sprint(i) {
			t.Fatal(i, record, known)
		}
	}
	if u.active.keys != n || u.active.buckets[0].live != n {
		t.Fatal(u.active.keys, u.active.buckets)
	}
}

// A view uses tables that are sealed meanwhile: their memory is not Go's.
func TestATableIsFreedAfterItsLastUse(t *testing.T) {
	m := New(1 << 20)
	m.Apply(1, batchOf(1, 1000))
	frozen := m.Freeze()
	views := []*View{}
	for range 2 {
		view, err := m.View(func(*View) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		views = append(views, view)
	}
	m.Sealed()
	<-frozen.Done()
	for i, view := range views {
		if frozen.IsFreed() || frozen.arena == nil || frozen.slots == nil {
			t.Fatalf("a table that a view uses has no memory after %d of two were released", i)
		}
		view.Release()
	}
	if !frozen.IsFreed() || frozen.arena != nil || frozen.slots != nil {
		t.Error("a table has its memory after its last view")
	}
	if m.Active().IsFreed() {
		t.Error("the active table is freed")
	}
}

// A run may be written by a goroutine for which no caller waits any more, from a table of a closed store.
func TestAFrameKeepsItsTable(t *testing.T) {
	var at Moment
	want := map[string]string{}
	func() {
		full := newTable(maphash.MakeSeed(), 1<<20, 0)
		bucket := full.bucket([]byte("bucket"))
		for i := range 20_000 {
			tail, record := fmt.Appendf(nil, "tail %6d", i), fmt.Appendf(nil, "record %d", i)
			full.putAll([]tableWrite{full.write(bucket, tail, record)})
			want["bucket"+string(tail)] = string(record)
		}
		at = momentOf([]*Table{full})
	}()
	for range 3 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond) // memory of garbage is unmapped by a goroutine
	}
	got := map[string]string{}
	for key, record := range at.Sorted(storage.Span{}).All(0) {
		got[string(key[1:])] = string(record)
	}
	if !maps.Equal(got, want) {
		t.Errorf("%d of %d claims", len(got), len(want))
	}
}

// A table's data about buckets is also memory: many scopes with a claim or two each fill it sooner.
func TestBucketsCountForTheSizeOfATable(t *testing.T) {
	const limit = 1 << 20
	u := New(limit)
	scope, prefixes := strings.Repeat("s", 240), 0
	for i := uint64(1); !u.IsFull(); i++ {
		key := claimKey(fmt.Sprint(scope, i), 0, i)
		prefix, _ := SplitPrefix(key)
		prefixes += len(prefix)
		u.Apply(i, []storage.ClaimWrite{{Key: key, Record: []byte("r")}})
	}
	if prefixes > limit {
		t.Errorf("a table of %d bytes has %d bytes of prefixes", limit, prefixes)
	}
}

// unpack is the reverse of AppendPacked.
func unpack(b []byte) (claims []storage.ClaimWrite, err error) {
	var prefix []byte
	err = eachPacked(b, func(p []byte) bool { prefix = p; return false }, func(tail, record []byte) {
		claims = append(claims, storage.ClaimWrite{Key: slices.Concat(prefix, tail), Record: record})
	})
	return claims, err
}

// Claims whose ids share their first bytes take no more room than those whose ids have only the rest.
func TestPackedClaimsDoNotRepeatWhatTheirIDsShare(t *testing.T) {
	const shared = "https://shop.example.com/api/v1/orders/"
	var long, short []storage.ClaimWrite
	for i := range 100 {
		b, rest := storage.Bucket{Scope: "a", Week: 105684}, fmt.Sprintf("%04d", i)
		long = append(long, storage.ClaimWrite{Key: b.AppendKey(nil, []byte(shared+rest)), Record: []byte{1}})
		short = append(short, storage.ClaimWrite{Key: b.AppendKey(nil, []byte(rest)), Record: []byte{1}})
	}
	if got, most := len(AppendPacked(nil, long)), len(AppendPacked(nil, short))+len(shared); got > most {
		t.Errorf("100 claims take %d bytes, want at most %d", got, most)
	}
}

// The packed form is forever.
func TestGoldenPacked(t *testing.T) {
	a, b := storage.Bucket{Scope: "a", Week: 105684}, storage.Bucket{Scope: "\x00", Week: 105685}
	claims := []storage.ClaimWrite{
		{Key: a.AppendKey(nil, []byte("bc")), Record: []byte{1, 2, 3}},
		{Key: a.AppendKey(nil, []byte("7f1c0a52-2f0e-4a53-9d0c-0f6a1f6a2b11")), Record: nil},
		{Key: b.AppendKey(nil, []byte("x")), Record: []byte{}},
		{Key: a.AppendKey(nil, []byte("ys")), Record: []byte{9}},
		{Key: a.AppendKey(nil, []byte("yst")), Record: []byte{8}},
	}
	const golden = "02" + "07" + "61000100019cd4" + "00" + // two claims of a
		"03" + "04" + "016263" + "010203" +
		"11" + "00" + "027f1c0a522f0e4a539d0c0f6a1f6a2b11" +
		"01" + "08" + "00ff000100019cd5" + "02" + "0178" + // one of b
		"00" + "01" +
		"02" + "07" + "61000100019cd4" + "03" + "017973" + // and two of a that share their first bytes
		"00" + "02" + "09" +
		"01" + "02" + "74" + "08"
	packed := AppendPacked(nil, claims)
	if hex.EncodeToString(packed) != golden {
		t.Fatalf("%x", packed)
	}
	if got, err := unpack(packed); err != nil || fmt.Sprint(got) != fmt.Sprint(claims) {
		t.Fatal(got, err)
	}
	for n := 1; n < len(packed); n++ {
		if got, err := unpack(packed[:n]); err == nil && len(got) == len(claims) {
			t.Errorf("cut to %d bytes: %v", n, got)
		}
	}
}

// A packed batch has one form: what all tails share is not repeated, and what has no tail shares none.
func TestPackedBatchInAnotherFormIsDamaged(t *testing.T) {
	const bucket = "61000100019cd4"
	for name, form := range map[string]string{
		"all tails go on alike":   "02" + "07" + bucket + "01" + "01" + "02" + "00" + "7973" + "02" + "00" + "7974",
		"one tail is not shared":  "01" + "07" + bucket + "00" + "02" + "00" + "0179",
		"tails of an invalid key": "01" + "01" + "61" + "01" + "79" + "00" + "00",
	} {
		b, err := hex.DecodeString(form)
		if err != nil {
			t.Fatal(err)
		}
		if claims, err := unpack(b); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%s: %v, %v", name, claims, err)
		}
	}
}

func FuzzPacked(f *testing.F) {
	var claims []storage.ClaimWrite
	for i, key := range someKeys() {
		claims = append(claims, storage.ClaimWrite{Key: key, Record: bytes.Repeat([]byte{'r'}, i%3)})
	}
	f.Add(AppendPacked(nil, claims))
	f.Add(AppendPacked(nil, batchOf(1, 10)))
	f.Fuzz(func(t *testing.T, b []byte) {
		claims, err := unpack(b)
		if err != nil {
			return
		}
		if again := AppendPacked(nil, claims); !bytes.Equal(again, b) {
			t.Fatalf("%x is taken, %x would be written", b, again)
		}
	})
}
