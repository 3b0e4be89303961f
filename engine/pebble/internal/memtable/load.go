package memtable

// Load adds a packed batch without the buckets that were dropped after it. Nothing else may use the
// tables until Index has returned.
func (m *Memtable) Load(seq uint64, packed []byte, dropNotes map[string]uint64) error {
	t := m.active
	if t.Size() >= m.limit && m.frozen == nil {
		m.frozen, m.active = t, newTable(m.seed, m.limit, 0)
		t = m.active
	}
	t.last = seq
	t.reserve(2 * len(packed))
	var bucket uint32
	return eachPacked(packed, func(prefix []byte) (skip bool) {
		if at, noted := dropNotes[string(prefix)]; noted && seq <= at {
			return true
		}
		bucket = t.bucket(prefix)
		return false
	}, func(tail, record []byte) { t.load(bucket, tail, record) })
}

// reserve makes room for n bytes in the arena, and for a quarter more if it is beyond the limit of a
// table. Unlike append, it does not clear fresh memory.
func (t *Table) reserve(n int) {
	if used := len(t.arena); cap(t.arena)-used < n {
		t.arena = append(make([]byte, 0, used+max(n, used/4)), t.arena...)
	}
}

// load adds an entry, which get does not find before Index.
func (t *Table) load(bucket uint32, tail, record []byte) {
	off := len(t.arena)
	t.arena = appendEntry(t.arena, bucket, tail, record)
	t.buckets[bucket].bytes += uint64(len(t.arena) - off)
	t.keys++ // corrected by index
}

// Index makes what Load has added visible.
func (m *Memtable) Index() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active.indexAll()
	if m.frozen != nil {
		m.frozen.indexAll()
	}
}

// indexAll fills the slots of a table whose entries load has added.
func (t *Table) indexAll() {
	t.grow(slotsFor(t.keys)) // replaces empty slots
	t.keys = 0
	var writes [64]tableWrite
	var offs [len(writes)]uint32
	for off := uint32(0); off < uint32(len(t.arena)); {
		n := 0
		for ; n < len(writes) && off < uint32(len(t.arena)); n++ {
			e := t.entry(off)
			writes[n], offs[n] = t.write(e.bucket, e.tail, e.record), off
			off = e.end
		}
		t.prefetch(writes[:n])
		for i := range writes[:n] {
			t.set(&writes[i], offs[i])
		}
	}
}
