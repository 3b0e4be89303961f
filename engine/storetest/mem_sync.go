package storetest

import (
	"fmt"
)

// syncs makes batches durable, and can hold that back for tests.
type syncs struct{ *memory }

// HoldSyncs makes every wait block, and keeps its batch from becoming durable, until ReleaseSyncs,
// StepSync or a failure.
func (m syncs) HoldSyncs() { m.setHeld(true) }

// ReleaseSyncs ends HoldSyncs.
func (m syncs) ReleaseSyncs() { m.setHeld(false) }

func (m syncs) setHeld(held bool) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.held, m.permits = held, 0
	m.changed.Broadcast()
}

// StepSync releases one wait that HoldSyncs holds back, or the next wait if none is held back now.
func (m syncs) StepSync() {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.permits++
	m.changed.Broadcast()
}

// AwaitHeld blocks until HoldSyncs holds a wait back.
func (m syncs) AwaitHeld() {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	for !m.held || m.holding == 0 || m.permits > 0 {
		m.changed.Wait()
	}
}

// Unsynced returns how many applied batches are not durable.
func (m syncs) Unsynced() int {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return len(m.history.pending)
}

// confirm is the wait of batch seq.
func (m syncs) confirm(seq uint64) error {
	hookErr := m.begin(OpWait)
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if seq != m.nextWait {
		panic(fmt.Sprintf("storetest: wait for batch %d, want %d", seq, m.nextWait))
	}
	m.nextWait++
	m.holding++
	m.changed.Broadcast()
	for m.held && m.permits == 0 && m.failed == nil {
		m.changed.Wait()
	}
	m.holding--
	m.permits = max(0, m.permits-1)
	m.changed.Broadcast()
	if m.failed == nil && hookErr != nil {
		m.failed = hookErr
	}
	if m.failed != nil {
		return m.poisoned(OpWait)
	}
	m.history.confirm(seq)
	m.history.durable.trim(m.trimmed)
	return nil
}
