package storetest

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// An Op names a method of a store, for counting and failing its calls. OpWait is the wait that
// Apply returns.
type Op string

// The methods that Mem counts.
const (
	OpApply        Op = "Apply"
	OpWait         Op = "wait"
	OpClaim        Op = "Claim"
	OpState        Op = "State"
	OpScanState    Op = "ScanState"
	OpBuckets      Op = "Buckets"
	OpScan         Op = "Scan"
	OpJournal      Op = "Journal"
	OpTrimJournal  Op = "TrimJournal"
	OpDrop         Op = "Drop"
	OpReclaim      Op = "Reclaim"
	OpReclaimState Op = "ReclaimState"
	OpUsage        Op = "Usage"
	OpBucketBytes  Op = "BucketBytes"
	OpWriteSidecar Op = "WriteSidecar"
	OpReadSidecar  Op = "ReadSidecar"
	OpBackup       Op = "Backup"
	OpVerify       Op = "Verify"
	OpClose        Op = "Close"
)

// ErrPowerCut is the error of a Mem after [Mem.Crash].
var ErrPowerCut = errors.New("storetest: the power was cut")

// faults counts the calls of a Mem, and makes them fail.
type faults struct {
	disk *Disk

	// Guarded by disk.mu.
	calls   map[Op]int
	hooks   map[Op]func(call int) error
	busy    map[string]bool // calls in progress, of those that must run one at a time
	failed  error           // why the store is poisoned
	closed  bool
	changed *sync.Cond // signalled when failed or what syncs waits for changes
}

// Calls returns how often op was called since the store was opened.
func (m *faults) Calls(op Op) int {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.calls[op]
}

// Before sets a hook that is called, without a lock, at the start of each later call of op. hook
// gets the number of the call, starting with 1, and may block. If it returns an error, the call
// fails with it; a failed Apply, wait, TrimJournal, Drop, Reclaim, ReclaimState or WriteSidecar
// poisons the store, except for a WriteSidecar that fails with syscall.ENOSPC. A nil hook removes
// the previous one.
func (m *faults) Before(op Op, hook func(call int) error) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.hooks[op] = hook
}

// FailAt makes the n-th call of op from now on fail with err, where 1 is the next call. It replaces
// the hook of Before.
func (m *faults) FailAt(op Op, n int, err error) {
	at := m.Calls(op) + n
	m.Before(op, func(call int) error {
		if call == at {
			return err
		}
		return nil
	})
}

// Fail poisons the store: every later call that writes, and every wait for a batch that is not
// durable, fails with err. Held waits return with it.
func (m *faults) Fail(err error) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.poison(err)
}

// begin counts a call and runs its hook.
func (m *faults) begin(op Op) error {
	m.disk.mu.Lock()
	if m.closed {
		m.disk.mu.Unlock()
		panic(fmt.Sprintf("storetest: %s after Close", op))
	}
	m.calls[op]++
	call, hook, cut := m.calls[op], m.hooks[op], errors.Is(m.failed, ErrPowerCut)
	m.disk.mu.Unlock()
	if cut {
		return ErrPowerCut
	}
	if hook == nil {
		return nil
	}
	if err := hook(call); err != nil {
		return fmt.Errorf("storetest: %s, call %d: %w", op, call, err)
	}
	return nil
}

// beginWrite is begin for a call that writes: it fails on a poisoned store, and a failure poisons
// the store.
func (m *faults) beginWrite(op Op) error {
	err := m.begin(op)
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if m.failed != nil {
		return m.poisoned(op)
	}
	if err != nil && (op != OpWriteSidecar || !sidecar.NoSpace(err)) {
		m.poison(err)
	}
	return err
}

// poison makes the store fail. The first cause is kept, unless the power is cut. The caller holds
// disk.mu.
func (m *faults) poison(err error) {
	if m.failed == nil || errors.Is(err, ErrPowerCut) {
		m.failed = err
	}
	m.changed.Broadcast()
}

// exclusive panics if a call of the same group is in progress. The returned function ends the call.
func (m *faults) exclusive(group string) (end func()) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if m.busy[group] {
		panic("storetest: two calls at a time of " + group)
	}
	m.busy[group] = true
	return func() {
		m.disk.mu.Lock()
		m.busy[group] = false
		m.disk.mu.Unlock()
	}
}

// poisoned returns an error if op fails on a poisoned store. The caller holds disk.mu.
func (m *faults) poisoned(op Op) error {
	return fmt.Errorf("storetest: %s: the store has failed: %w", op, m.failed)
}
