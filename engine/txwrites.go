package engine

import (
	"cmp"
	"slices"

	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A txWrite is a write of a transaction.
type txWrite struct {
	StateWrite storage.StateWrite
	name       string     // the key as a string
	slot       int32      // index of its key in txWrites.latest
	before     int32      // index of the previous write to the same key, -1 if there is none
	isSum      bool       // an Add, which has no value until it is admitted
	delta      int64      // for a sum: total of the transaction's Adds to the key so far
	sum        *txSum     // for a sum that is being committed
	unclaim    *txUnclaim // the withdrawal of a claim; nil for writes of state

	atCommit bool // Value is set to the time of the commit
}

// writeOverhead is counted for each write towards limits.TxBytes. It also bounds many small writes,
// which take about 200 bytes of memory each.
const writeOverhead = 128

// size returns the bytes of a write that count towards limits.TxBytes.
func (w *txWrite) size() int {
	if w.isSum {
		return len(w.StateWrite.Key) + int64Size + writeOverhead
	}
	return len(w.StateWrite.Key) + len(w.StateWrite.Value) + writeOverhead
}

// forHistory returns the write for the validation of open transactions. The value of a sum is
// unknown, because another Add in the same batch may change it.
func (w *txWrite) forHistory() occ.Write {
	isKept := w.name[0] == stateHost || w.name[0] == stateSpace
	return occ.Write{Key: w.name, IsScanned: isKept, IsKnown: isKept && !w.isSum, Value: w.StateWrite.Value}
}

// A txSum is used during the commit of a transaction's Adds to a key that the transaction has not
// otherwise written.
type txSum struct {
	looked bool      // base was read before the transaction was handed over
	base   sumBefore // the value that was read
	asOf   uint64    // base is as of this batch or a later one

	total int64 // base + delta, set when the transaction is admitted
}

// plus returns the combined write of w and a later Add.
func (w *txWrite) plus(delta int64) (txWrite, error) {
	if w.isSum {
		total, err := addTo(w.StateWrite.Key, integer(w.delta), delta)
		return txWrite{StateWrite: storage.StateWrite{Key: w.StateWrite.Key}, isSum: true, delta: total}, err
	}
	total, err := addTo(w.StateWrite.Key, sumOf(w.StateWrite.Value, w.StateWrite.Value != nil), delta)
	return txWrite{StateWrite: storage.StateWrite{Key: w.StateWrite.Key, Value: EncodeInt64(total)}}, err
}

// resolve returns the value of a write, given the stored value.
func (w *txWrite) resolve(stored []byte, found bool) ([]byte, error) {
	if !w.isSum {
		return w.StateWrite.Value, nil
	}
	total, err := addTo(w.StateWrite.Key, sumOf(stored, found), w.delta)
	if err != nil {
		return nil, err
	}
	return EncodeInt64(total), nil
}

// A txUnclaim is a claim that a transaction withdraws. The key of its write is claimRead of the
// claim's key.
type txUnclaim struct {
	scope string
	week  weekbucket.Week
	key   []byte
	hash  uint64
	rec   ClaimRecord
}

// txWrites has all writes of a transaction, including overwritten ones, so that it can roll back to
// a savepoint.
type txWrites struct {
	list   []txWrite        // in order
	latest []int32          // index of the latest write to each key, in the order of first writes
	slots  map[string]int32 // from a key to its index in latest
	sorted []int32          // the first slots, sorted by key when a scan last needed it
	bytes  int              // size of all writes

	adds     bool // some writes are, or were, sums
	unclaims bool // some writes withdraw claims, or did
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
	*s = txWrites{list: s.list[:0], latest: s.latest[:0], slots: s.slots, sorted: s.sorted[:0]}
}

// find returns the index of the latest write to a key, -1 if there is none.
func (s *txWrites) find(key []byte) int {
	if slot, ok := s.slots[string(key)]; ok {
		return int(s.latest[slot])
	}
	return -1
}

// isLatest reports whether the i-th write is the latest one to its key.
func (s *txWrites) isLatest(i int) bool { return int(s.latest[s.list[i].slot]) == i }

// add adds w as the latest write to its key. before is the previous one, as find returns it; if
// there is none, add keeps the key.
func (s *txWrites) add(w txWrite, before int) {
	if w.before = int32(before); before >= 0 {
		first := &s.list[before]
		w.StateWrite.Key, w.name, w.slot = first.StateWrite.Key, first.name, first.slot
		s.latest[w.slot] = int32(len(s.list))
	} else {
		if s.slots == nil {
			s.slots = make(map[string]int32)
		}
		w.name, w.slot = string(w.StateWrite.Key), int32(len(s.latest))
		s.slots[w.name] = w.slot
		s.latest = append(s.latest, int32(len(s.list)))
	}
	s.list = append(s.list, w)
	s.bytes += w.size()
	s.adds = s.adds || w.isSum
	s.unclaims = s.unclaims || w.unclaim != nil
}

// undo undoes all but the first n writes.
func (s *txWrites) undo(n int) {
	for i := len(s.list) - 1; i >= n; i-- {
		w := &s.list[i]
		s.bytes -= w.size()
		if w.before >= 0 {
			s.latest[w.slot] = w.before
			continue
		}
		delete(s.slots, w.name)
		s.latest = s.latest[:w.slot] // keys are removed in the reverse order of their addition
	}
	clear(s.list[n:])
	s.list = s.list[:n]
	if keys := int32(len(s.latest)); len(s.sorted) > len(s.latest) {
		s.sorted = slices.DeleteFunc(s.sorted, func(slot int32) bool { return slot >= keys })
	}
}

// unclaimed returns the number of withdrawn claims.
func (s *txWrites) unclaimed() (n uint64) {
	if !s.unclaims {
		return 0
	}
	for _, i := range s.latest {
		if s.list[i].unclaim != nil {
			n++
		}
	}
	return n
}

func (s *txWrites) name(slot int32) string { return s.list[s.latest[slot]].name }

// sort merges the keys added since the last call into sorted.
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
	for n, slot := range slices.Backward(added) { // from the greatest key down, so that each element moves once
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

// in returns the latest writes to keys in the span before end, sorted by key, at most limit of
// them. upTo is end, or the end of the writes that the limit allows. A nil end means no end.
func (s *txWrites) in(span storage.Span, end []byte, limit int) (writes []txWrite, upTo []byte) {
	s.sort()
	for _, slot := range s.sorted[s.search(s.sorted, string(span.Start())):] {
		w := &s.list[s.latest[slot]]
		if !span.Holds(w.StateWrite.Key) || end != nil && w.name >= string(end) {
			break
		}
		if len(writes) == limit {
			return writes, afterKey(writes[limit-1].StateWrite.Key)
		}
		writes = append(writes, *w)
	}
	return writes, end
}
