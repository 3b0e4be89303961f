// Package memtable keeps the claims that are not in tables on disk yet. It finds them by key, lists
// and sorts them for scans and for their tables, and restores them from packed batches after a
// kill. A table is filled until it is frozen, and freed when its claims are on disk. Much of the
// memory is outside the Go heap, so users must release tables.
package memtable

import (
	"hash/maphash"
	"slices"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A Memtable has the claims that are not in tables on disk yet: the table that Apply fills, and at
// most one earlier table, which is frozen while its claims are written. Its entry for a key is
// always newer than those on disk. A key without an entry may be on disk. All methods are safe for
// concurrent use, but only one goroutine at a time may call Apply and Freeze.
type Memtable struct {
	limit uint64 // a table of this size is full
	seed  maphash.Seed

	mu     sync.RWMutex // guards the tables and their contents; not held during I/O
	active *Table       // only Freeze replaces it
	frozen *Table       // nil if there is none
	known  Buckets      // on disk

	writes []tableWrite // used by Apply
}

// New returns an empty Memtable whose tables are full at limit bytes.
func New(limit uint64) *Memtable {
	m := &Memtable{limit: limit, seed: maphash.MakeSeed(), known: newBuckets()}
	m.active = newTable(m.seed, limit, 0)
	return m
}

// Abandon frees the memory of a Memtable that nothing uses any more.
func (m *Memtable) Abandon() {
	m.active.release()
	if m.frozen != nil {
		m.frozen.release()
	}
}

// Apply adds the claims of batch seq, all at one moment.
func (m *Memtable) Apply(seq uint64, claims []storage.ClaimWrite) {
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

// IsFull reports whether the active table must be frozen.
func (m *Memtable) IsFull() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.active.Size() >= m.limit
}

// Active returns the table that Apply fills.
func (m *Memtable) Active() *Table {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.active
}

// Freeze replaces the active table by a new one, and returns the frozen one: nil if the previous
// one is not sealed yet, or there is nothing to freeze.
func (m *Memtable) Freeze() *Table {
	if m.Frozen() != nil || m.newestActive() == 0 {
		return nil
	}
	next := newTable(m.seed, m.limit, m.active.keys) // without the lock, because it zeroes some megabytes
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frozen, m.active = m.active, next
	return m.frozen
}

// newestActive returns the newest batch in the active table, 0 if there is none.
func (m *Memtable) newestActive() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.active.last
}

// Frozen returns the frozen table, nil if there is none.
func (m *Memtable) Frozen() *Table {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.frozen
}

// Sealed removes the frozen table, whose claims are on disk.
func (m *Memtable) Sealed() {
	m.mu.Lock()
	t := m.frozen
	m.known.add(t)
	close(t.done)
	m.frozen = nil
	m.mu.Unlock()
	t.release() // without the lock, because it may take some milliseconds
}

// Get returns the newest entry for a key: none (known is false), a removal (record is nil) or a
// copy of its record.
func (m *Memtable) Get(key []byte) (record []byte, known bool) {
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

// Drop removes the claims of buckets, which are given by their prefixes.
func (m *Memtable) Drop(prefixes []string) {
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

// Knows reports whether a table has had claims of a bucket. If not, no packed batch has claims of
// it.
func (m *Memtable) Knows(prefix string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, known := m.active.index[prefix]
	if !known && m.frozen != nil {
		_, known = m.frozen.index[prefix]
	}
	return known
}

// Newest returns the newest batch in memory.
func (m *Memtable) Newest() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.active.last == 0 && m.frozen != nil {
		return m.frozen.last
	}
	return m.active.last
}

// Moment returns the current contents of a table that is not released yet.
func (m *Memtable) Moment(t *Table) Moment {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return momentOf([]*Table{t})
}

// IsDropped reports whether a bucket was dropped from unreleased tables since the moment.
func (m *Memtable) IsDropped(at Moment) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.ContainsFunc(at, func(f frame) bool { return f.drops != f.table.drops })
}

// BytesOf returns the approximate size of a bucket's claims in memory in packed batches.
func (m *Memtable) BytesOf(prefix string) (n uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, t := range m.tables() {
		if i, ok := t.index[prefix]; ok {
			n += t.buckets[i].bytes
		}
	}
	return n
}

// tables returns the tables, newer first. The caller holds mu.
func (m *Memtable) tables() []*Table {
	if m.frozen == nil {
		return []*Table{m.active}
	}
	return []*Table{m.active, m.frozen}
}
