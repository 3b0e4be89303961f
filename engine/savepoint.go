package engine

import (
	"cmp"
	"slices"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A Savepoint is a point in a transaction that it can go back to.
type Savepoint struct {
	tx     *Tx
	serial uint64
	at     progress
}

// savepoints are those that a transaction has taken.
type savepoints struct {
	last   uint64    // the serial number of the last one
	undone []serials // those that are not valid any more, rising
}

// serials are those after the first one, up to the last one.
type serials struct{ after, last uint64 }

// take returns the serial number of a new savepoint.
func (p *savepoints) take() uint64 {
	p.last++
	return p.last
}

// progress is how much of what a transaction does is done.
type progress struct {
	claims, keys, near, altered, writes, verdicts int
	kept                                          verdictCounts
}

// Savepoint marks this point of the transaction.
func (tx *Tx) Savepoint() (Savepoint, error) {
	if err := tx.lock(); err != nil {
		return Savepoint{}, err
	}
	defer tx.mu.Unlock()
	return tx.savepoint(), nil
}

// savepoint is Savepoint with tx.mu held.
func (tx *Tx) savepoint() Savepoint {
	r := tx.req
	return Savepoint{tx, tx.points.take(), progress{
		len(r.claims), len(r.arena), len(r.near), len(tx.altered), len(tx.writes.list), tx.watched.mark(), tx.kept,
	}}
}

// RollbackTo undoes everything claimed, dead-lettered and written since the savepoint was taken;
// what was before stays. Savepoints taken since then are no longer valid.
func (tx *Tx) RollbackTo(s Savepoint) error {
	if err := tx.enter(); err != nil {
		return err
	}
	defer tx.leave()
	if s.tx != tx || !tx.points.valid(s.serial) {
		return &KeyError{"savepoint", "is not one of this transaction, or was undone by an earlier rollback"}
	}
	tx.points.invalidate(s.serial)
	tx.undo(s.at)
	tx.watched.undo(s.at.verdicts)
	tx.kept = s.at.kept
	return nil
}

// valid reports whether no rollback went back behind the savepoint.
func (p *savepoints) valid(serial uint64) bool {
	i, _ := slices.BinarySearchFunc(p.undone, serial, func(u serials, serial uint64) int { return cmp.Compare(u.last, serial) })
	return i == len(p.undone) || serial <= p.undone[i].after
}

// invalidate makes all savepoints invalid that were taken after the given one.
func (p *savepoints) invalidate(after uint64) {
	n := len(p.undone)
	for n > 0 && p.undone[n-1].after >= after {
		n--
	}
	if p.undone = p.undone[:n]; after < p.last {
		p.undone = append(p.undone, serials{after, p.last})
	}
}

// undo takes back what was done since to.
func (tx *Tx) undo(to progress) {
	r := tx.req
	for n := len(tx.altered) - 1; n >= to.altered; n-- {
		a := &tx.altered[n]
		tx.bytes += len(a.before.Data) - len(r.records[a.claim].Data)
		r.records[a.claim] = a.before
	}
	clear(tx.altered[to.altered:])
	tx.altered = tx.altered[:to.altered]
	tx.e.tx.release(tx, to.claims)
	clear(r.claims[to.claims:])
	clear(r.records[min(to.claims, len(r.records)):])
	r.claims, r.records = r.claims[:to.claims], r.records[:to.claims]
	r.arena, r.near = r.arena[:to.keys], r.near[:to.near]
	for i := range tx.writes.list[to.writes:] {
		tx.bytes -= tx.writes.list[to.writes+i].size()
	}
	tx.writes.undo(to.writes)
}

// A txWrite is a write of a transaction.
type txWrite struct {
	storage.StateWrite
	name    string     // Key as a string
	slot    int32      // of its key, in txWrites.latest
	before  int32      // index of the write to the same key before, -1 if none
	isSum   bool       // an Add, which has no value before it is admitted
	delta   int64      // of a sum: of all Adds of the transaction to the key until then
	sum     *txSum     // of a sum that is being committed
	unclaim *txUnclaim // a claim that is taken back, which is no state; nil for every other write

	atCommit bool // Value becomes the time of the commit
}

// size returns the bytes of a write that count towards MaxTxBytes.
func (w *txWrite) size() int {
	if w.isSum {
		return len(w.Key) + int64Size
	}
	return len(w.Key) + len(w.Value)
}

// txWrites are the writes of a transaction, all of them, so that it can go back to a savepoint.
type txWrites struct {
	list   []txWrite        // in the order they were made
	latest []int32          // index of the latest write to each key, in the order of the first ones
	slots  map[string]int32 // from a key to its index in latest
	sorted []int32          // the first slots, in the order of their keys: those that a scan has met
}

// keptWrites bounds the memory that is kept for the next transaction.
const keptWrites = 1 << 13

func (s *txWrites) reset() {
	if cap(s.list) > keptWrites {
		*s = txWrites{}
		return
	}
	clear(s.list)
	clear(s.slots)
	s.list, s.latest, s.sorted = s.list[:0], s.latest[:0], s.sorted[:0]
}

// find returns the index of the latest write to a key, -1 if there is none.
func (s *txWrites) find(key []byte) int {
	if slot, ok := s.slots[string(key)]; ok {
		return int(s.latest[slot])
	}
	return -1
}

// isLatest reports whether no later write has the key of the one with the index.
func (s *txWrites) isLatest(i int) bool { return int(s.latest[s.list[i].slot]) == i }

// add makes w the latest write to its key; before is the one until now, as find returns it. The key
// is kept if there was none.
func (s *txWrites) add(w txWrite, before int) {
	if w.before = int32(before); before >= 0 {
		first := &s.list[before]
		w.Key, w.name, w.slot = first.Key, first.name, first.slot
		s.latest[w.slot] = int32(len(s.list))
	} else {
		if s.slots == nil {
			s.slots = make(map[string]int32)
		}
		w.name, w.slot = string(w.Key), int32(len(s.latest))
		s.slots[w.name] = w.slot
		s.latest = append(s.latest, int32(len(s.list)))
	}
	s.list = append(s.list, w)
}

// undo takes back all but the first n writes.
func (s *txWrites) undo(n int) {
	for i := len(s.list) - 1; i >= n; i-- {
		w := &s.list[i]
		if w.before >= 0 {
			s.latest[w.slot] = w.before
			continue
		}
		delete(s.slots, w.name)
		s.latest = s.latest[:w.slot] // keys come and go in one order
	}
	clear(s.list[n:])
	s.list = s.list[:n]
	if keys := int32(len(s.latest)); len(s.sorted) > len(s.latest) {
		s.sorted = slices.DeleteFunc(s.sorted, func(slot int32) bool { return slot >= keys })
	}
}

func (s *txWrites) name(slot int32) string { return s.list[s.latest[slot]].name }

// sort puts the keys that were written since the last time into their places in sorted.
func (s *txWrites) sort() {
	old := len(s.sorted)
	if old == len(s.latest) {
		return
	}
	for slot := old; slot < len(s.latest); slot++ {
		s.sorted = append(s.sorted, int32(slot))
	}
	added := slices.Clone(s.sorted[old:])
	slices.SortFunc(added, func(a, b int32) int { return cmp.Compare(s.name(a), s.name(b)) })
	for n, slot := range slices.Backward(added) { // behind the keys that are greater, which move once
		at := s.search(s.sorted[:old], s.name(slot))
		copy(s.sorted[at+n+1:], s.sorted[at:old])
		s.sorted[at+n] = slot
		old = at
	}
}

func (s *txWrites) search(sorted []int32, key string) int {
	at, _ := slices.BinarySearchFunc(sorted, key, func(slot int32, key string) int { return cmp.Compare(s.name(slot), key) })
	return at
}

// in returns the latest writes to keys in the span that are less than end, in the order of their
// keys, and not more than limit: then it returns the end of these. An end of nil is no bound.
func (s *txWrites) in(span storage.Span, end []byte, limit int) (writes []txWrite, upTo []byte) {
	s.sort()
	for _, slot := range s.sorted[s.search(s.sorted, string(span.Start())):] {
		w := &s.list[s.latest[slot]]
		if !span.Holds(w.Key) || end != nil && w.name >= string(end) {
			break
		}
		if len(writes) == limit {
			return writes, afterKey(writes[limit-1].Key)
		}
		writes = append(writes, *w)
	}
	return writes, end
}
