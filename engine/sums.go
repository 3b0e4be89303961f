package engine

import (
	"encoding/binary"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// sums is a cache of the values of keys with Adds, as of the newest decided batch. The committer
// decides all writes and updates the cache with each of them. A decided batch is applied unless the
// engine has stopped, so a cached value replaces a read of the store.
type sums struct {
	mu    sync.Mutex // guards the fields below; not held during I/O
	lru   *simplelru.LRU[string, *knownSum]
	bytes int
}

type knownSum struct {
	sumBefore sumBefore
	seq       uint64 // batch of the last Add, 0 if another write followed
	index     int    // index of its write in that batch
}

// maxSumBytes is the maximum memory of the cache. An entry takes the length of its key and about
// knownSumIn bytes.
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

// knows reports whether the cache has the key.
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

// added adds a sum to batch seq and caches it. All sums of a key in one batch share one write.
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

// written updates the cache after a key was put, or deleted if value is nil.
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

// lookUp reads the values for a transaction's Adds from the store, in the caller's goroutine, to
// save reads in the committer.
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
