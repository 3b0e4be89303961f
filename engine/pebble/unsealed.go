package pebble

import (
	"hash/maphash"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
)

// unsealed has the claims that are not in Pebble's tables yet: the table that Apply fills, and at
// most one earlier table, which is being sealed (seal.go). Its entry for a key is always newer than
// Pebble's; a key without an entry is in Pebble's tables or absent.
type unsealed struct {
	limit uint64 // a table of this size is full
	seed  maphash.Seed

	mu     sync.RWMutex // guards the tables and their contents; not held during I/O
	active *table       // only Apply, or code that runs instead of it, replaces it
	frozen *table       // nil if there is none
	known  bucketList   // of the buckets in Pebble's tables

	writes []tableWrite // used by apply
}

func newUnsealed(limit uint64) *unsealed {
	m := &unsealed{limit: limit, seed: maphash.MakeSeed(), known: newBucketList()}
	m.active = newTable(m.seed, limit, 0)
	return m
}

// abandon frees the tables of a store that cannot be opened.
func (m *unsealed) abandon() {
	m.active.unuse()
	if m.frozen != nil {
		m.frozen.unuse()
	}
}

// apply adds the claims of a batch, all at one moment.
func (m *unsealed) apply(seq uint64, claims []storage.ClaimWrite) {
	if len(claims) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.active
	for len(claims) > 0 {
		prefix, n := firstBucket(claims)
		bucket := t.bucket(prefix)
		for i := range claims[:n] {
			m.writes = append(m.writes, t.write(bucket, claims[i].Key[len(prefix):], claims[i].Record))
		}
		claims = claims[n:]
	}
	t.putAll(m.writes)
	clear(m.writes)
	m.writes = m.writes[:0]
	t.last = seq
}

// full reports whether the active table must be frozen.
func (m *unsealed) full() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.active.size() >= m.limit
}

// freeze replaces the active table by a new one, and returns the frozen one: nil if the previous
// one is not sealed yet, or there is nothing to freeze. Only Apply, or code that runs instead of
// it, calls it.
func (m *unsealed) freeze() *table {
	if m.sealing() != nil || m.newestActive() == 0 {
		return nil
	}
	next := newTable(m.seed, m.limit, m.active.keys) // some megabytes, zeroed: not under the lock
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

// sealed removes the frozen table: Pebble has its contents.
func (m *unsealed) sealed() {
	m.mu.Lock()
	t := m.frozen
	m.known.add(t)
	close(t.done)
	m.frozen = nil
	m.mu.Unlock()
	t.unuse() // not under the lock: it may take some milliseconds
}

// get is table.get for all tables in memory. The record is a copy.
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

// drop removes the claims of buckets.
func (m *unsealed) drop(prefixes []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, prefix := range prefixes {
		m.active.drop(prefix)
		if m.frozen != nil {
			m.frozen.drop(prefix)
		}
	}
	m.known.drop(prefixes)
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
// can be frozen or removed.
func (m *unsealed) hold(fn func(tables []*table) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	tables := []*table{m.active}
	if m.frozen != nil {
		tables = append(tables, m.frozen)
	}
	return fn(tables)
}

// complement makes the list of buckets complete (bucketList.complement).
func (m *unsealed) complement(clone *bucketList, prefixes []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known.complement(clone, prefixes)
}

// removes reports whether the newest table with an entry for the key says that it was removed.
func (m *unsealed) removes(tables []*table, key []byte) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, t := range tables {
		if record, known := t.get(key); known {
			return record == nil
		}
	}
	return false
}

// holdsSome reports whether the tables have a claim of a bucket. It reads claims only where the
// newer table removes some of those that the older one may have.
func (m *unsealed) holdsSome(tables []*table, prefix string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	removed := 0
	for i, t := range tables {
		n, ok := t.index[prefix]
		if !ok {
			continue
		}
		b := &t.buckets[n]
		if b.live > 0 && (removed == 0 || t.holdsBeside(tables[:i], n)) {
			return true
		}
		removed += b.removed
	}
	return false
}

// bytesOf returns the bytes in the journal for a bucket's claims in memory.
func (m *unsealed) bytesOf(prefix string) (n uint64) {
	_ = m.hold(func(tables []*table) error {
		for _, t := range tables {
			if i, ok := t.index[prefix]; ok {
				n += t.buckets[i].bytes
			}
		}
		return nil
	})
	return n
}
