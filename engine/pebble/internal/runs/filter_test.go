package runs

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// The store reads the filters of tables with code of its own.
func TestTableFiltersAgreeWithPebble(t *testing.T) {
	seed := uint64(0x1234567890abcdef)
	policy := Filters{&seed, 10}
	r := rng(1)
	for _, keys := range []int{0, 1, 10, 1000} {
		w := policy.NewWriter(pebble.TableFilter)
		var in [][]byte
		for n := range keys {
			key := make([]byte, n%41)
			for i := range key {
				key[i] = byte(r.Uint32())
			}
			w.AddKey(key)
			in = append(in, key)
		}
		block := w.Finish(nil)
		f, ok := newKeyedFilter(block, seed)
		if !ok {
			t.Fatalf("%d keys: a filter of %d bytes is not read", keys, len(block))
		}
		for n := range 20_000 {
			key := binaryKey(r.Uint64(), n%23)
			if n < len(in) {
				key = in[n]
			}
			hash, want := keyedHash(key, seed), policy.MayContain(pebble.TableFilter, block, key)
			if f.mayContain(hash) != want || want && f.first(hash) != 1 || n < len(in) && !want {
				t.Fatalf("%x: %v, first %d, want %v", key, f.mayContain(hash), f.first(hash), want)
			}
		}
	}
	for _, block := range [][]byte{make([]byte, 6), make([]byte, 69), append(make([]byte, 64), 6, 2, 0, 0, 0), append(make([]byte, 64), 1, 1, 0, 0, 0)} {
		if _, ok := newFilter(block); ok {
			t.Errorf("%x is a filter", block)
		}
		if _, ok := newKeyedFilter(append(block, 0, 0, 0, 0), seed); ok {
			t.Errorf("%x is a keyed filter", block)
		}
	}
}

// A filter with another seed than the store's is not used: it would find that claims are absent.
func TestFilterOfAnotherSeedIsNotUsed(t *testing.T) {
	key := []byte("key")
	if f, ok := newKeyedFilter(nil, 1); !ok || f.mayContain(keyedHash(key, 1)) {
		t.Error("the filter of a table that has no keys is not used")
	}
	for keys := range 20 {
		w := (Filters{new(uint64(1)), 10}).NewWriter(pebble.TableFilter)
		for n := range keys {
			w.AddKey(binaryKey(uint64(n), 8))
		}
		block := w.Finish(nil)
		if f, ok := newKeyedFilter(block, 2); !ok || !f.mayContain(keyedHash(key, 2)) || f.first(keyedHash(key, 2)) != 1 {
			t.Errorf("a filter of %d keys with another seed is used", keys)
		}
		if !(Filters{new(uint64(2)), 10}).MayContain(pebble.TableFilter, block, key) || !(Filters{new(uint64), 10}).MayContain(pebble.TableFilter, []byte{1}, key) {
			t.Errorf("Pebble uses a filter of %d keys with another seed", keys)
		}
		if f, _ := newKeyedFilter(block, 1); f.mayContain(keyedHash(key, 1)) {
			t.Errorf("a filter of %d keys has another", keys)
		}
	}
}

// collide returns a key of the same length as another, and with the same plain hash: the first bytes
// are given, and the last four are computed. The length is a multiple of 4.
func collide(key, first []byte) []byte {
	const seed, multiplier = 0xbc9f1d34, 0xc6a4a793
	inverse := uint32(1)
	for range 5 { // each step doubles the number of right bits
		inverse *= 2 - multiplier*inverse
	}
	h := seed ^ uint32(len(key))*multiplier
	for at := 0; at+4 < len(key); at += 4 {
		h = (h + binary.LittleEndian.Uint32(first[at:])) * multiplier
		h ^= h >> 16
	}
	want := filterHash(key)
	want ^= want >> 16
	return binary.LittleEndian.AppendUint32(first[:len(key)-4:len(key)-4], want*inverse-h)
}

// A producer that chooses ids, and knows the code, cannot choose ids that the filters of tables seem
// to have.
func TestChosenIDsDoNotPassTheFilters(t *testing.T) {
	f := newFixture(t)
	bucket, r := storage.Bucket{Scope: "s", Week: 105000}, rng(7)
	for len(bucket.AppendKey([]byte{Space}, make([]byte, 16)))%4 != 0 {
		bucket.Scope += "s"
	}
	newKey := func() []byte {
		id := make([]byte, 16)
		for i := range id {
			id[i] = byte(r.Uint32())
		}
		return bucket.AppendKey([]byte{Space}, id)
	}
	var keys [][]byte
	for range 1000 {
		keys = append(keys, newKey())
	}
	slices.SortFunc(keys, bytes.Compare)
	f.ingest(keys, 250)
	x := f.loaded()
	passed, ordinary := 0, 0
	for _, key := range keys {
		if record, _ := x.Get(key); record == nil {
			t.Fatalf("the index does not find %x", key)
		}
		chosen := collide(key, newKey())
		if filterHash(chosen) != filterHash(key) {
			t.Fatalf("%x does not collide with %x", chosen, key)
		}
		passed += passes(x, chosen)
		ordinary += passes(x, newKey())
	}
	// each passes one filter in a hundred; a thousand would if filters had the plain hash
	if tables := len(x.list.Load().groups[0]); passed > 20*tables || ordinary > 20*tables {
		t.Errorf("1000 chosen ids pass the filters of %d tables %d times, others %d times", tables, passed, ordinary)
	}
}

// passes returns how many filters of tables seem to have a key.
func passes(x *Index, key []byte) (n int) {
	hash := keyedHash(key, *x.files.seed)
	for _, g := range x.list.Load().groups {
		for _, table := range g {
			if table.filter.mayContain(hash) {
				n++
			}
		}
	}
	return n
}

func binaryKey(n uint64, size int) []byte {
	key := make([]byte, size)
	for i := range key {
		key[i] = byte(n >> (i % 8 * 8))
	}
	return key
}
