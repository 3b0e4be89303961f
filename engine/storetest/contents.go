package storetest

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/hapax-dev/hapax/engine/storage"
)

// contents has the contents of a store as plain maps. Values are never modified, so copies may
// share them.
type contents struct {
	lastSeq uint64
	claims  map[string][]byte
	state   map[string][]byte
	journal map[uint64][]byte
	buckets map[storage.Bucket]int // number of claims
}

func newContents() *contents {
	return &contents{
		claims:  map[string][]byte{},
		state:   map[string][]byte{},
		journal: map[uint64][]byte{},
		buckets: map[storage.Bucket]int{},
	}
}

func (c *contents) clone() *contents {
	return &contents{
		lastSeq: c.lastSeq,
		claims:  maps.Clone(c.claims),
		state:   maps.Clone(c.state),
		journal: maps.Clone(c.journal),
		buckets: maps.Clone(c.buckets),
	}
}

func (c *contents) apply(b *storage.Batch) {
	for _, w := range b.Claims {
		c.setClaim(w)
	}
	for _, w := range b.State {
		if w.Value == nil {
			delete(c.state, string(w.Key))
		} else {
			c.state[string(w.Key)] = w.Value
		}
	}
	c.journal[b.Seq] = b.Journal
	c.lastSeq = b.Seq
}

func (c *contents) setClaim(w storage.ClaimWrite) {
	key, bucket := string(w.Key), bucketOf(w.Key)
	_, had := c.claims[key]
	switch {
	case w.Record != nil && !had:
		c.buckets[bucket]++
	case w.Record == nil && had:
		if c.buckets[bucket]--; c.buckets[bucket] == 0 {
			delete(c.buckets, bucket)
		}
	}
	if w.Record == nil {
		delete(c.claims, key)
	} else {
		c.claims[key] = w.Record
	}
}

// drop removes the claims of the buckets and returns their size.
func (c *contents) drop(buckets []storage.Bucket) (size uint64) {
	for _, b := range buckets {
		for _, key := range sortedKeys(c.claims, string(b.AppendPrefix(nil))) {
			size += uint64(len(key) + len(c.claims[key]))
			c.setClaim(storage.ClaimWrite{Key: []byte(key)})
		}
	}
	return size
}

func (c *contents) trim(below uint64) {
	maps.DeleteFunc(c.journal, func(seq uint64, _ []byte) bool { return seq < below })
}

func (c *contents) size() (n uint64) {
	for _, m := range []map[string][]byte{c.claims, c.state} {
		for k, v := range m {
			n += uint64(len(k) + len(v))
		}
	}
	for _, v := range c.journal {
		n += uint64(8 + len(v))
	}
	return n
}

// A history has the batches that a store was given: the durable ones, and the pending ones in
// order.
type history struct {
	view    *contents // everything applied
	durable *contents
	pending []*storage.Batch
}

func newHistory(c *contents) history { return history{view: c.clone(), durable: c.clone()} }

// apply adds a batch.
func (h *history) apply(b *storage.Batch) {
	h.view.apply(b)
	h.pending = append(h.pending, b)
}

// confirm makes the batches up to seq durable.
func (h *history) confirm(seq uint64) {
	for len(h.pending) > 0 && h.pending[0].Seq <= seq {
		h.durable.apply(h.pending[0])
		h.pending = h.pending[1:]
	}
}

// drop removes buckets from the durable contents and from all pending batches.
func (h *history) drop(buckets []storage.Bucket) (size uint64) {
	h.durable.drop(buckets)
	for _, b := range h.pending {
		b.Claims = slices.DeleteFunc(b.Claims, func(w storage.ClaimWrite) bool {
			return slices.Contains(buckets, bucketOf(w.Key))
		})
	}
	return h.view.drop(buckets)
}

// survivors returns the contents after a power failure that the first keep of the pending batches
// survive.
func (h *history) survivors(keep int) *contents {
	c := h.durable.clone()
	for _, b := range h.pending[:min(keep, len(h.pending))] {
		c.apply(b)
	}
	return c
}

func bucketOf(key []byte) storage.Bucket {
	b, _, err := storage.SplitKey(key)
	if err != nil {
		panic("storetest: a claim's key that the engine would not make: " + err.Error())
	}
	return b
}

func sortedKeys[V any](m map[string]V, prefix string) []string {
	var keys []string
	for k := range m {
		if strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func spanKeys[V any](m map[string]V, span storage.Span) []string {
	return slices.DeleteFunc(sortedKeys(m, string(span.Prefix)), func(k string) bool { return k < string(span.From) })
}

func sortedBuckets(m map[storage.Bucket]int) []storage.Bucket {
	return slices.SortedFunc(maps.Keys(m), func(a, b storage.Bucket) int {
		return bytes.Compare(a.AppendPrefix(nil), b.AppendPrefix(nil))
	})
}

// cloneBatch copies everything; nil stays nil and empty stays empty.
func cloneBatch(b *storage.Batch) *storage.Batch {
	c := &storage.Batch{Seq: b.Seq, Journal: bytes.Clone(b.Journal)}
	for _, w := range b.Claims {
		c.Claims = append(c.Claims, storage.ClaimWrite{Key: bytes.Clone(w.Key), Record: bytes.Clone(w.Record)})
	}
	for _, w := range b.State {
		c.State = append(c.State, storage.StateWrite{Key: bytes.Clone(w.Key), Value: bytes.Clone(w.Value)})
	}
	return c
}
