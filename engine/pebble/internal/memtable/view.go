package memtable

// A View has the tables that were in memory at one time, and keeps their memory until it is
// released.
type View struct {
	memtable *Memtable
	tables   []*Table // newer first
}

// View returns a view, and calls fn with it while nothing in memory can change and no table can be
// frozen or removed. The caller must release the view even if fn fails.
func (m *Memtable) View(fn func(*View) error) (*View, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	v := &View{m, m.tables()}
	for _, t := range v.tables {
		t.users.Add(1)
	}
	held := false
	defer func() {
		if !held { // fn has panicked
			v.Release()
		}
	}()
	err := fn(v)
	held = true
	return v, err
}

// Release ends the use of the view.
func (v *View) Release() {
	for _, t := range v.tables {
		t.release()
	}
}

// Moment returns the contents of the tables. It must be called inside fn of View.
func (v *View) Moment() (at Moment) { return momentOf(v.tables) }

// Buckets returns the list of the buckets on disk and in memory. It must be called inside fn of
// View.
func (v *View) Buckets() Buckets { return v.memtable.known.clone(v.tables) }

// Complement completes the list of the buckets on disk with the prefixes of all buckets that were
// found after Buckets had returned seen.
func (v *View) Complement(seen *Buckets, prefixes []string) {
	v.memtable.mu.Lock()
	defer v.memtable.mu.Unlock()
	v.memtable.known.complement(seen, prefixes)
}

// Removes reports whether the newest entry for the key is a removal.
func (v *View) Removes(key []byte) bool {
	v.memtable.mu.RLock()
	defer v.memtable.mu.RUnlock()
	record, known := newestOf(v.tables, key)
	return known && record == nil
}

// HoldsSome reports whether the tables have a claim of a bucket. It reads claims only if the newer
// table removes claims that the older one may have.
func (v *View) HoldsSome(prefix string) bool {
	v.memtable.mu.RLock()
	defer v.memtable.mu.RUnlock()
	removed := 0
	for i, t := range v.tables {
		n, ok := t.index[prefix]
		if !ok {
			continue
		}
		b := &t.buckets[n]
		if b.live > 0 && (removed == 0 || t.holdsBeside(v.tables[:i], n)) {
			return true
		}
		removed += b.removed
	}
	return false
}
