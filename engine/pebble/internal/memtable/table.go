package memtable

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"runtime"
	"sync/atomic"

	"github.com/hapax-dev/hapax/internal/offheap"
)

// A Table has the claims of consecutive batches that are not in tables on disk yet: the newest
// write of each key, removals included. It is only in memory, and is restored from the packed
// batches (packed.go) when the store is opened.
//
// The entries are contiguous in an arena that only grows, so that a slice of it stays valid while
// the writer appends. An entry is
//
//	+-------------------+--------------------+--------------------------------------+------+--------+
//	| bucket no uvarint | tail len uvarint   | record len + 1 uvarint, 0 = removed  | tail | record |
//	+-------------------+--------------------+--------------------------------------+------+--------+
//
// and slots, by linear probing, map a hash of bucket and tail to the newest entry of a key: 32 bits
// of hash, then the entry's offset + 1, 0 = empty. For a claim on a UUID, these are 35 bytes of
// entry and 11 to 21 of slots.
//
// Both may be outside the Go heap (offheap.Make).
//
// Memtable.mu guards its contents.
type Table struct {
	seed    maphash.Seed
	arena   []byte
	slots   []uint64
	keys    int // number of distinct keys, removed ones included
	buckets []tableBucket
	index   map[string]uint32 // indices of buckets by prefix
	owned   uint64            // size of buckets and index

	users     atomic.Int32 // users: the Memtable, until the table is sealed, and views
	freeArena func()
	freeSlots func()

	last  uint64        // newest batch
	drops int           // number of dropped buckets
	done  chan struct{} // closed when a frozen table is sealed
}

// A tableBucket is the data of a bucket in a table.
type tableBucket struct {
	prefix  string
	live    int    // number of keys with a record
	removed int    // number of removed keys
	bytes   uint64 // size of all entries, including replaced ones
	// below is the length of the arena when the bucket was dropped: entries before it are dropped.
	below uint32
}

const (
	minSlots = 1 << 10
	// slotBytes is the maximum average size of a key's slots between two doublings.
	slotBytes = 16
	// bucketBytes is the size of a bucket in the list and the index without its prefix, including
	// space for growth.
	bucketBytes = 128
)

// newTable returns an empty table that is full at limit bytes and has slots for keys.
func newTable(seed maphash.Seed, limit uint64, keys int) *Table {
	t := &Table{seed: seed, index: make(map[string]uint32), done: make(chan struct{})}
	t.users.Store(1)
	// The unused part occupies no memory. The last batch may exceed the limit.
	t.arena, t.freeArena = offheap.Make[byte](t, limit+limit/8)
	t.arena = t.arena[:0]
	t.slots, t.freeSlots = offheap.Make[uint64](t, slotsFor(keys))
	return t
}

// slotsFor returns the number of slots for the given number of keys: a power of two, of which at
// most three quarters are used.
func slotsFor(keys int) uint64 {
	n := uint64(minSlots)
	for 3*n < 4*uint64(keys) {
		n *= 2
	}
	return n
}

// release frees arena and slots after the last user.
func (t *Table) release() {
	if t.users.Add(-1) > 0 {
		return
	}
	t.arena, t.slots = nil, nil
	t.freeArena()
	t.freeSlots()
}

// IsFreed reports whether the table was sealed and no view uses it any more.
func (t *Table) IsFreed() bool { return t.users.Load() == 0 }

// Done returns a channel that is closed when all claims of a frozen table are on disk.
func (t *Table) Done() <-chan struct{} { return t.done }

// Last returns the newest batch of a frozen table.
func (t *Table) Last() uint64 { return t.last }

// Size returns the approximate memory of the table. No Apply may be in progress.
func (t *Table) Size() uint64 { return uint64(len(t.arena)) + slotBytes*uint64(t.keys) + t.owned }

// bucket returns the number of a bucket, and adds the bucket if necessary.
func (t *Table) bucket(prefix []byte) uint32 {
	if b, ok := t.index[string(prefix)]; ok {
		return b
	}
	b := uint32(len(t.buckets))
	t.buckets = append(t.buckets, tableBucket{prefix: string(prefix)})
	t.index[t.buckets[b].prefix] = b
	t.owned += bucketBytes + uint64(len(prefix))
	return b
}

func (t *Table) hash(bucket uint32, tail []byte) uint32 {
	const odd = 0x9E3779B97F4A7C15
	return uint32((maphash.Bytes(t.seed, tail) ^ uint64(bucket)*odd) >> 16)
}

// A tableWrite writes the record of a key, or its removal if record is nil.
type tableWrite struct {
	bucket, tag  uint32 // tag is a hash of bucket and tail
	tail, record []byte
}

func (t *Table) write(bucket uint32, tail, record []byte) tableWrite {
	return tableWrite{bucket: bucket, tag: t.hash(bucket, tail), tail: tail, record: record}
}

// putAll puts writes in order.
func (t *Table) putAll(writes []tableWrite) {
	if n := slotsFor(t.keys + len(writes)); n > uint64(len(t.slots)) {
		t.grow(n)
	}
	t.prefetch(writes)
	for i := range writes {
		t.put(&writes[i])
	}
}

// prefetch loads the slots of writes, which are at random places, into the processor's cache. A
// loop without other work loads many at once.
func (t *Table) prefetch(writes []tableWrite) {
	mask := len(t.slots) - 1
	var read uint64
	for i := range writes {
		read ^= t.slots[int(writes[i].tag)&mask]
	}
	runtime.KeepAlive(read) // keeps the compiler from removing the loop
}

func (t *Table) put(w *tableWrite) {
	off := len(t.arena)
	t.arena = appendEntry(t.arena, w.bucket, w.tail, w.record)
	t.buckets[w.bucket].bytes += uint64(len(t.arena) - off)
	t.set(w, uint32(off))
}

// set makes the entry at off, written by w, the newest of its key.
func (t *Table) set(w *tableWrite, off uint32) {
	b := &t.buckets[w.bucket]
	slot, found := t.find(w.bucket, w.tail, w.tag)
	if !found {
		t.keys++
	} else if e := t.entry(uint32(t.slots[slot]) - 1); e.off >= b.below {
		b.count(e.record, -1)
	}
	b.count(w.record, 1)
	t.slots[slot] = uint64(w.tag)<<32 | uint64(off+1)
}

// count counts an entry that is added or replaced.
func (b *tableBucket) count(record []byte, n int) {
	if record == nil {
		b.removed += n
	} else {
		b.live += n
	}
}

// find returns the slot of a key, or the free slot for it.
func (t *Table) find(bucket uint32, tail []byte, tag uint32) (slot int, found bool) {
	mask := len(t.slots) - 1
	for i := int(tag) & mask; ; i = (i + 1) & mask {
		s := t.slots[i]
		if s == 0 {
			return i, false
		}
		if uint32(s>>32) != tag {
			continue
		}
		if e := t.entry(uint32(s) - 1); e.bucket == bucket && bytes.Equal(e.tail, tail) {
			return i, true
		}
	}
}

// grow replaces the slots with n slots.
func (t *Table) grow(n uint64) {
	old, free := t.slots, t.freeSlots
	defer free()
	t.slots, t.freeSlots = offheap.Make[uint64](t, n)
	mask := len(t.slots) - 1
	for _, s := range old {
		if s == 0 {
			continue
		}
		i := int(s>>32) & mask
		for t.slots[i] != 0 {
			i = (i + 1) & mask
		}
		t.slots[i] = s
	}
}

// get returns the table's entry for a key: none (known is false), a removal (record is nil) or its
// record, which shares memory with the arena.
func (t *Table) get(key []byte) (record []byte, known bool) {
	if t.keys == 0 {
		return nil, false
	}
	prefix, tail := SplitPrefix(key)
	bucket, ok := t.index[string(prefix)]
	if !ok {
		return nil, false
	}
	slot, found := t.find(bucket, tail, t.hash(bucket, tail))
	if !found {
		return nil, false
	}
	e := t.entry(uint32(t.slots[slot]) - 1)
	if e.off < t.buckets[bucket].below {
		return nil, false
	}
	return e.record, true
}

// newestOf returns the entry for a key in the first table that has one. Newer tables come first.
func newestOf(tables []*Table, key []byte) (record []byte, known bool) {
	for _, t := range tables {
		if record, known = t.get(key); known {
			break
		}
	}
	return record, known
}

// drop removes all claims of a bucket.
func (t *Table) drop(prefix string) {
	i, ok := t.index[prefix]
	if !ok {
		return
	}
	b := &t.buckets[i]
	b.below, b.live, b.removed, b.bytes = uint32(len(t.arena)), 0, 0, 0
	t.drops++
}

// An entry is an entry of an arena, with which its slices share memory. record is nil for a
// removal.
type entry struct {
	bucket       uint32
	off, end     uint32
	tail, record []byte
}

func (t *Table) entry(off uint32) entry { return entryAt(t.arena, off) }

func appendEntry(dst []byte, bucket uint32, tail, record []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(bucket))
	dst = binary.AppendUvarint(dst, uint64(len(tail)))
	dst = binary.AppendUvarint(dst, recordLength(record))
	return append(append(dst, tail...), record...)
}

func entryAt(arena []byte, off uint32) entry {
	at := int(off)
	next := func() int {
		if b := arena[at]; b < 0x80 { // nearly always
			at++
			return int(b)
		}
		v, n := binary.Uvarint(arena[at:])
		at += n
		return int(v)
	}
	bucket, tail, record := next(), next(), next()
	e := entry{bucket: uint32(bucket), off: off, tail: arena[at : at+tail : at+tail]}
	at += tail
	if record > 0 {
		e.record = arena[at : at+record-1 : at+record-1]
		at += record - 1
	}
	e.end = uint32(at)
	return e
}

// holdsBeside reports whether a table has a claim of a bucket that newer tables do not remove.
func (t *Table) holdsBeside(newer []*Table, bucket uint32) bool {
	key := []byte(t.buckets[bucket].prefix)
	prefix := len(key)
	for off := uint32(0); off < uint32(len(t.arena)); {
		e := t.entry(off)
		off = e.end
		if e.bucket != bucket {
			continue
		}
		key = append(key[:prefix], e.tail...)
		if record, known := t.get(key); !known || record == nil {
			continue
		}
		if record, known := newestOf(newer, key); !known || record != nil {
			return true
		}
	}
	return false
}
