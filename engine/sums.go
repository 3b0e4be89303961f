package engine

import (
	"encoding/binary"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// sums is a cache of the values of keys that were added to, as of the newest batch decided so far.
// The committer decides all writes, one after the other, and updates the cache with each; a batch
// that is decided is applied, or the engine has stopped. So a cached value needs no read of the
// batches in progress nor of the store.
type sums struct {
	mu    sync.Mutex // guards all below; no I/O under it
	lru   *simplelru.LRU[string, *knownSum]
	bytes int
}

type knownSum struct {
	sumBefore sumBefore
	seq       uint64 // the batch of the last Add, if no other write came after that
	index     int    // of its write in that batch
}

// maxSumBytes is the maximum memory of the cache. A key takes its length and about knownSumIn
// bytes.
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

// added puts a sum into batch seq and caches it. Sums of one key in one batch take one write.
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

// written records that a key was put, or deleted if value is nil.
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

// lookUp reads from the store, in the caller's goroutine, the values that the committer would
// otherwise read for a transaction's writes.
func (s *sums) lookUp(c *core, writes *txWrites) error {
	if !writes.adds {
		return nil
	}
	for _, i := range writes.latest {
		w := &writes.list[i]
		if !w.isSum {
			continue
		}
		if w.sum = new(txSum); s.knows(w.name) {
			continue
		}
		w.sum.asOf = c.applied.at.Load()
		value, found, err := c.store.State(w.StateWrite.Key)
		if err != nil {
			return c.stop(err)
		}
		w.sum.base, w.sum.looked = sumOf(value, found), true
	}
	return nil
}
