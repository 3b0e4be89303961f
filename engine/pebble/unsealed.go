package pebble

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
)

// unsealed is the claims that are not in Pebble's tables yet: what Apply fills, and at most one
// table before that, which is being sealed (seal.go). What it says of a key is newer than what
// Pebble's tables say, always; and what it does not know, they do.
type unsealed struct {
	limit uint64 // a table of this size is full
	seed  maphash.Seed

	mu     sync.RWMutex // guards the tables and what is in them; no I/O under it
	active *table       // only Apply, or code that runs instead of it, replaces it
	frozen *table       // nil if there is none
}

func newUnsealed(limit uint64) *unsealed {
	m := &unsealed{limit: limit, seed: maphash.MakeSeed()}
	m.active = newTable(m.seed, nil)
	return m
}

// apply takes the claims of a batch, all at one moment.
func (m *unsealed) apply(seq uint64, claims []storage.ClaimWrite) {
	if len(claims) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.active
	var prefix []byte
	var bucket uint32
	for i := range claims {
		key := claims[i].Key
		if prefix == nil || !sameBucket(prefix, key) {
			prefix, _ = splitPrefix(key)
			bucket = t.bucket(prefix)
		}
		t.put(bucket, key[len(prefix):], claims[i].Record)
	}
	t.last = seq
}

// replay takes a packed batch of the journal. Buckets that were dropped after it are left out.
func (m *unsealed) replay(seq uint64, packed []byte, dropped func(prefix []byte) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.active
	var bucket uint32
	t.last = seq
	return eachPacked(packed, func(prefix []byte) (skip bool) {
		if dropped(prefix) {
			return true
		}
		bucket = t.bucket(prefix)
		return false
	}, func(tail, record []byte) { t.put(bucket, tail, record) })
}

// full reports whether the active table is to be frozen.
func (m *unsealed) full() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.active.size() >= m.limit
}

// freeze makes room for a new active table, and returns the frozen one: nil if there is one that is
// not sealed yet, or nothing to freeze. Only Apply, or code that runs instead of it, calls it.
func (m *unsealed) freeze() *table {
	if m.sealing() != nil || m.newestActive() == 0 {
		return nil
	}
	next := newTable(m.seed, m.active) // some megabytes, zeroed: not under the lock
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frozen, m.active = m.active, next
	return m.frozen
}

// newestActive returns the newest batch in the active table, 0 if there is none.
func (m *unsealed) newestActive() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.active.last
}

// sealing returns the frozen table, nil if there is none.
func (m *unsealed) sealing() *table {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.frozen
}

// sealed forgets the frozen table: Pebble has what it held.
func (m *unsealed) sealed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.frozen.done)
	m.frozen = nil
}

// get is table.get for what is in memory. The record is a copy.
func (m *unsealed) get(key []byte) (record []byte, known bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	record, known = m.active.get(key)
	if !known && m.frozen != nil {
		record, known = m.frozen.get(key)
	}
	if record != nil {
		record = append(make([]byte, 0, len(record)), record...)
	}
	return record, known
}

// drop forgets the claims of buckets.
func (m *unsealed) drop(prefixes []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, prefix := range prefixes {
		m.active.drop(prefix)
		if m.frozen != nil {
			m.frozen.drop(prefix)
		}
	}
}

// knows reports whether a table has had claims of a bucket. If none has, the journal of packed
// batches has none.
func (m *unsealed) knows(prefix string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, known := m.active.index[prefix]
	if !known && m.frozen != nil {
		_, known = m.frozen.index[prefix]
	}
	return known
}

// newest returns the newest batch in memory.
func (m *unsealed) newest() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.active.last == 0 && m.frozen != nil {
		return m.frozen.last
	}
	return m.active.last
}

// hold calls fn with the tables, the newer first, while nothing in memory can change and no table
// can be frozen or forgotten.
func (m *unsealed) hold(fn func(tables []*table) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	tables := []*table{m.active}
	if m.frozen != nil {
		tables = append(tables, m.frozen)
	}
	return fn(tables)
}

// A moment is what was in memory at one time; what comes later does not change it. The newer table
// comes first.
type moment []frame

// A frame is a table at one time.
type frame struct {
	arena   []byte
	buckets []tableBucket
	keys    int // about as many as it has entries
	drops   int
}

func (t *table) frame() frame {
	return frame{t.arena[:len(t.arena):len(t.arena)], slices.Clone(t.buckets), t.keys, t.drops}
}

func momentOf(tables []*table) (at moment) {
	for _, t := range tables {
		at = append(at, t.frame())
	}
	return at
}

// A sorted is the claims of a moment that a span selects, in key order, each key once, removals
// included.
type sorted struct {
	frames   moment
	prefixes []string // of all buckets, in order
	refs     []ref
}

// A ref leads to an entry. It holds as much of the key as distinguishes most keys.
type ref struct {
	head  uint64 // the first bytes of the tail
	place uint32 // twice the rank of the bucket's prefix, plus the number of the frame
	off   uint32
}

func (m moment) sorted(span storage.Span) *sorted {
	s := &sorted{frames: m, prefixes: m.prefixes()}
	rank := make(map[string]uint32, len(s.prefixes))
	for i, p := range s.prefixes {
		rank[p] = uint32(i)
	}
	keys := 0
	for _, f := range m {
		keys += f.keys
	}
	s.refs = make([]ref, 0, keys)
	for i, f := range m {
		ranks := make([]uint32, len(f.buckets))
		for j := range f.buckets {
			ranks[j] = rank[f.buckets[j].prefix]
		}
		selects := f.selects(span)
		for off := uint32(0); off < uint32(len(f.arena)); {
			e := entryAt(f.arena, off)
			off = e.end
			if e.off >= f.buckets[e.bucket].below && selects(e) {
				s.refs = append(s.refs, ref{head(e.tail), ranks[e.bucket]<<1 | uint32(i), e.off})
			}
		}
	}
	slices.SortFunc(s.refs, s.compare)
	s.refs = slices.CompactFunc(s.refs, func(a, b ref) bool {
		return a.head == b.head && a.place>>1 == b.place>>1 && bytes.Equal(s.entry(a).tail, s.entry(b).tail)
	})
	return s
}

// selects returns a function that reports whether the span holds the key of an entry.
func (f frame) selects(span storage.Span) func(e entry) bool {
	start := span.Start()
	if len(start) == 0 {
		return func(entry) bool { return true }
	}
	near := make([]bool, len(f.buckets)) // the span may hold keys of this bucket
	for i := range f.buckets {
		prefix := []byte(f.buckets[i].prefix)
		n := min(len(prefix), len(span.Prefix))
		near[i] = bytes.Equal(prefix[:n], span.Prefix[:n])
	}
	var key []byte
	return func(e entry) bool {
		if !near[e.bucket] {
			return false
		}
		key = append(append(key[:0], f.buckets[e.bucket].prefix...), e.tail...)
		return span.Holds(key)
	}
}

// prefixes returns those of all buckets, in order.
func (m moment) prefixes() (all []string) {
	for _, f := range m {
		for i := range f.buckets {
			all = append(all, f.buckets[i].prefix)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// prefixesOf returns those of all buckets that the tables know.
func prefixesOf(tables []*table) (all []string) {
	for _, t := range tables {
		for i := range t.buckets {
			all = append(all, t.buckets[i].prefix)
		}
	}
	return all
}

func head(tail []byte) uint64 {
	if len(tail) >= 8 {
		return binary.BigEndian.Uint64(tail)
	}
	var b [8]byte
	copy(b[:], tail)
	return binary.BigEndian.Uint64(b[:])
}

func (s *sorted) entry(r ref) entry { return entryAt(s.frames[r.place&1].arena, r.off) }

// compare puts the newest of the entries of a key first.
func (s *sorted) compare(a, b ref) int {
	if c := cmp.Compare(a.place>>1, b.place>>1); c != 0 {
		return c
	}
	if a.head != b.head {
		if a.head < b.head {
			return -1
		}
		return 1
	}
	if c := bytes.Compare(s.entry(a).tail, s.entry(b).tail); c != 0 {
		return c
	}
	if c := cmp.Compare(a.place, b.place); c != 0 {
		return c
	}
	return cmp.Compare(b.off, a.off)
}

// at returns what r leads to: its key in Pebble, appended to dst, and its record, nil if it was
// removed.
func (s *sorted) at(dst []byte, r ref) (key, record []byte) {
	e := s.entry(r)
	dst = append(append(dst, claimSpace), s.prefixes[r.place>>1]...)
	return append(dst, e.tail...), e.record
}
