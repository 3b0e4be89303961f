package storetest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hapax-dev/hapax/engine/storage"
)

// memReader reads claims, state and the journal.
type memReader struct{ *memory }

// Claim implements [storage.Store].
func (m memReader) Claim(key []byte) (record []byte, found bool, err error) {
	return m.get(OpClaim, key, func(c *contents) map[string][]byte { return c.claims })
}

// State implements [storage.Store].
func (m memReader) State(key []byte) (value []byte, found bool, err error) {
	return m.get(OpState, key, func(c *contents) map[string][]byte { return c.state })
}

func (m memReader) get(op Op, key []byte, of func(*contents) map[string][]byte) ([]byte, bool, error) {
	if err := m.begin(op); err != nil {
		return nil, false, err
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	v, found := of(m.history.view)[string(key)]
	return bytes.Clone(v), found, nil
}

// ScanState implements [storage.Store].
func (m memReader) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	if err := m.begin(OpScanState); err != nil {
		return err
	}
	state := m.snapshot(func(c *contents) map[string][]byte { return c.state })
	for _, k := range spanKeys(state, span) {
		if err := fn([]byte(k), bytes.Clone(state[k])); err != nil {
			return err
		}
	}
	return nil
}

// Buckets implements [storage.Store].
func (m memReader) Buckets(fn func(storage.Bucket) error) error {
	if err := m.begin(OpBuckets); err != nil {
		return err
	}
	m.disk.mu.Lock()
	buckets := sortedBuckets(m.history.view.buckets)
	m.disk.mu.Unlock()
	for _, b := range buckets {
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// Scan implements [storage.Store].
func (m memReader) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	if err := m.begin(OpScan); err != nil {
		return err
	}
	claims := m.snapshot(func(c *contents) map[string][]byte { return c.claims })
	started()
	for _, k := range spanKeys(claims, span) {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("storetest: scan: %w", err)
		}
		if err := fn([]byte(k), bytes.Clone(claims[k])); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (m memReader) snapshot(of func(*contents) map[string][]byte) map[string][]byte {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return maps.Clone(of(m.history.view))
}

// Journal implements [storage.Store].
func (m memReader) Journal(from uint64, fn func(seq uint64, entry []byte) error) error {
	if err := m.begin(OpJournal); err != nil {
		return err
	}
	m.disk.mu.Lock()
	journal := maps.Clone(m.history.view.journal)
	m.disk.mu.Unlock()
	for _, seq := range slices.Sorted(maps.Keys(journal)) {
		if seq < from {
			continue
		}
		if err := fn(seq, bytes.Clone(journal[seq])); err != nil {
			return err
		}
	}
	return nil
}
