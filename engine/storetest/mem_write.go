package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
)

// memWriter applies batches, and removes unneeded data.
type memWriter struct{ syncs }

// Apply implements [storage.Store].
func (m memWriter) Apply(b *storage.Batch) (wait func() error, err error) {
	defer m.exclusive("Apply")()
	if err := m.beginWrite(OpApply); err != nil {
		return nil, err
	}
	b = cloneBatch(b)
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.checkBatch(b)
	m.nextSeq++
	m.history.apply(b)
	m.written += batchSize(b)
	return func() error { return m.confirm(b.Seq) }, nil
}

func (m memWriter) checkBatch(b *storage.Batch) {
	if b.Seq != m.nextSeq {
		panic(fmt.Sprintf("storetest: Apply of batch %d, want %d", b.Seq, m.nextSeq))
	}
	for _, w := range b.Claims {
		if bucket := bucketOf(w.Key); m.dropped[bucket] {
			panic(fmt.Sprintf("storetest: batch %d touches %v, which was dropped", b.Seq, bucket))
		}
	}
}

// TrimJournal implements [storage.Store]. It becomes durable with the next batch that becomes
// durable.
func (m memWriter) TrimJournal(below uint64) error {
	defer m.exclusive("TrimJournal")()
	if err := m.beginWrite(OpTrimJournal); err != nil {
		return err
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.trimmed = max(m.trimmed, below)
	m.history.view.trim(m.trimmed)
	return nil
}

// Drop implements [storage.Store]. A Drop that fails has removed every other claim.
func (m memWriter) Drop(buckets []storage.Bucket) error {
	defer m.exclusive("Drop")()
	err := m.beginWrite(OpDrop)
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if err != nil {
		m.dropHalf(buckets)
		return err
	}
	for _, b := range buckets {
		m.reclaim[b] += m.history.drop([]storage.Bucket{b})
		m.dropped[b] = true
	}
	return nil
}

func (m memWriter) dropHalf(buckets []storage.Bucket) {
	if errors.Is(m.failed, ErrPowerCut) {
		return
	}
	for _, b := range buckets {
		for i, key := range sortedKeys(m.history.durable.claims, string(b.AppendPrefix(nil))) {
			if i%2 == 0 {
				gone := storage.ClaimWrite{Key: []byte(key)}
				m.history.durable.setClaim(gone)
				m.history.view.setClaim(gone)
			}
		}
	}
}

// Reclaim implements [storage.Store].
func (m memWriter) Reclaim(ctx context.Context, buckets []storage.Bucket) error {
	defer m.exclusive("Reclaim")()
	if err := m.beginWrite(OpReclaim); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("storetest: reclaim: %w", err)
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	for _, b := range buckets {
		delete(m.reclaim, b)
	}
	return nil
}

// ReclaimState implements [storage.Store]. A map keeps nothing that was removed.
func (m memWriter) ReclaimState(ctx context.Context, _ storage.Span) error {
	defer m.exclusive("ReclaimState")()
	if err := m.beginWrite(OpReclaimState); err != nil {
		return err
	}
	return ctx.Err()
}

func batchSize(b *storage.Batch) uint64 {
	n := len(b.Journal)
	for _, w := range b.Claims {
		n += len(w.Key) + len(w.Record)
	}
	for _, w := range b.State {
		n += len(w.Key) + len(w.Value)
	}
	return uint64(n)
}
