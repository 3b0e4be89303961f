package engine

import (
	"encoding/binary"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// sums is a cache of the values of keys that were added to, as the newest batch decided so far
// leaves them. The committer decides all writes, one after the other, and keeps the cache in step
// with each; a batch that is decided is applied, or the engine has stopped. So what the cache knows
// needs no look at the batches under way nor at the store.
type sums struct {
	mu    sync.Mutex // guards all below; no I/O under it
	lru   *simplelru.LRU[string, *knownSum]
	bytes int
}

type knownSum struct {
	sumBefore
	seq   uint64 // the batch of the last Add, if no other write came after that
	index int    // of its write in that batch
}

// maxSumBytes caps the memory of the cache. A key takes its length and about knownSumIn bytes.
const (
	maxSumBytes = 8 << 20
	knownSumIn  = 160
)

func newSums() *sums {
	s := &sums{}
	lru, err := simplelru.NewLRU(maxSumBytes/knownSumIn, func(key string, _ *knownSum) { s.bytes -= len(key) + knownSumIn })
	if err != nil {
		panic(err) // the size is positive
	}
	s.lru = lru
	return s
}

// knows reports whether the cache has a key.
func (s *sums) knows(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lru.Contains(key)
}

func (s *sums) get(key string) (sumBefore, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.lru.Get(key); ok {
		return k.sumBefore, true
	}
	return sumBefore{}, false
}

// added puts a sum into batch seq and remembers it. Sums of one key in one batch take one write.
func (s *sums) added(b *storage.Batch, seq uint64, key string, total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.lru.Get(key)
	if ok && k.seq == seq {
		binary.BigEndian.PutUint64(b.State[k.index].Value, uint64(total))
		k.sumBefore = integer(total)
		return
	}
	b.State = append(b.State, storage.StateWrite{Key: []byte(key), Value: EncodeInt64(total)})
	now := knownSum{integer(total), seq, len(b.State) - 1}
	if ok {
		*k = now
		return
	}
	s.bytes += len(key) + knownSumIn
	s.lru.Add(key, &now)
	for s.bytes > maxSumBytes {
		s.lru.RemoveOldest()
	}
}

// written notes that a key was put, or deleted if value is nil.
func (s *sums) written(key string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.lru.Peek(key); ok {
		*k = knownSum{sumBefore: sumOf(value, value != nil)}
	}
}

func (s *sums) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lru.Len() == 0
}

// lookUpSums asks the store, in the caller's goroutine, for what the committer would have to read.
func (tx *Tx) lookUpSums() error {
	if !tx.adds {
		return nil
	}
	for _, i := range tx.writes.latest {
		w := &tx.writes.list[i]
		if !w.isSum {
			continue
		}
		if w.sum = new(txSum); tx.e.sums.knows(w.name) {
			continue
		}
		w.sum.asOf = tx.e.applied.at.Load()
		value, found, err := tx.e.store.State(w.Key)
		if err != nil {
			return tx.e.stop(err)
		}
		w.sum.base, w.sum.looked = sumOf(value, found), true
	}
	return nil
}

// resolveSums computes what the Adds of a transaction come to. It changes nothing that outlives the
// transaction.
func (e *Engine) resolveSums(g *group, tx *Tx) error {
	if !tx.adds {
		return nil
	}
	for _, i := range tx.writes.latest {
		w := &tx.writes.list[i]
		if !w.isSum {
			continue
		}
		base, err := e.sumBefore(g, w.name, w)
		if err != nil {
			return err
		}
		if w.sum.total, err = addTo(w.Key, base, w.delta); err != nil {
			return err
		}
	}
	return nil
}

// sumBefore returns what a key holds after everything decided so far: the cache knows it, or no
// transaction has written the key since the transaction asked the store, or the last write is in
// this batch, or the store shows it once the batch of the last write is applied.
func (e *Engine) sumBefore(g *group, key string, w *txWrite) (sumBefore, error) {
	if base, ok := e.sums.get(key); ok {
		return base, nil
	}
	last, floor := e.tx.lastWrite(key)
	if w.sum.looked && last <= w.sum.asOf && floor <= w.sum.asOf {
		return w.sum.base, nil
	}
	if last > e.seq {
		for i := len(g.batch.State) - 1; i >= 0; i-- {
			if s := &g.batch.State[i]; string(s.Key) == key {
				return sumOf(s.Value, s.Value != nil), nil
			}
		}
	}
	if !e.applied.wait(last) {
		return sumBefore{}, e.Err()
	}
	value, found, err := e.store.State(w.Key)
	if err != nil {
		return sumBefore{}, e.stop(err)
	}
	return sumOf(value, found), nil
}

// writeSums puts the sums of a transaction into the group, and notes its other writes.
func (e *Engine) writeSums(g *group, tx *Tx) {
	if !tx.adds && e.sums.empty() {
		return
	}
	for _, i := range tx.writes.latest {
		if w := &tx.writes.list[i]; w.isSum {
			e.sums.added(&g.batch, e.seq+1, w.name, w.sum.total)
			g.bytes += len(w.name) + int64Size
		} else {
			e.sums.written(w.name, w.Value)
		}
	}
}
