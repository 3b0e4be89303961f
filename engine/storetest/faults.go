package storetest

import (
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
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

// Calls returns how often op was called since the store was opened.
func (m *Mem) Calls(op Op) int {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.calls[op]
}

// Before sets what happens at the begin of each later call of op, under no lock: hook gets the
// number of the call, from 1, and may block. If it returns an error, that call fails with it; a
// failed Apply, wait, TrimJournal, Drop, Reclaim, ReclaimState or WriteSidecar poisons the store,
// but for a WriteSidecar that fails with syscall.ENOSPC. A nil hook removes the one before.
func (m *Mem) Before(op Op, hook func(call int) error) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.hooks[op] = hook
}

// FailAt makes the n-th call of op from now on fail with err; 1 is the next one. It replaces what
// Before has set.
func (m *Mem) FailAt(op Op, n int, err error) {
	at := m.Calls(op) + n
	m.Before(op, func(call int) error {
		if call == at {
			return err
		}
		return nil
	})
}

// Fail poisons the store: every later call that writes, and every wait for a batch that is not
// durable, fails with err. Waits that are held back are let go with it.
func (m *Mem) Fail(err error) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.poison(err)
}

// HoldSyncs keeps every wait from returning, and its batch from becoming durable, until
// ReleaseSyncs, StepSync or a failure.
func (m *Mem) HoldSyncs() { m.setHeld(true) }

// ReleaseSyncs ends HoldSyncs.
func (m *Mem) ReleaseSyncs() { m.setHeld(false) }

func (m *Mem) setHeld(held bool) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.held, m.permits = held, 0
	m.changed.Broadcast()
}

// StepSync lets one wait go that HoldSyncs holds back, the next one if there is none now.
func (m *Mem) StepSync() {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.permits++
	m.changed.Broadcast()
}

// AwaitHeld blocks until a wait is being held back by HoldSyncs.
func (m *Mem) AwaitHeld() {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	for !m.held || m.holding == 0 || m.permits > 0 {
		m.changed.Wait()
	}
}

// Unsynced returns how many applied batches are not durable.
func (m *Mem) Unsynced() int {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return len(m.history.pending)
}

// Crash cuts the power: only what is durable survives. It returns the store that is found
// afterwards in the same directory; m fails every call with ErrPowerCut.
func (m *Mem) Crash() *Mem {
	m.disk.mu.Lock()
	m.poison(ErrPowerCut)
	after := m.image.clone(m.history.survivors(0))
	m.disk.dirs[m.dir] = after
	m.disk.mu.Unlock()
	return m.disk.mustOpen(m.dir)
}

// CrashClone returns the store that a power cut at this moment would leave, on a disk of its own,
// if the first keepUnsynced of the batches that are not durable happen to survive. m continues.
func (m *Mem) CrashClone(keepUnsynced int) *Mem {
	disk := NewDisk()
	disk.dirs[m.dir] = m.crashImage(keepUnsynced)
	return disk.mustOpen(m.dir)
}

func (m *Mem) crashImage(keepUnsynced int) *image {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.image.clone(m.history.survivors(keepUnsynced))
}

func (d *Disk) mustOpen(dir string) *Mem {
	m, err := d.Open(dir, storage.NewIdentity())
	if err != nil {
		panic(err) // it is not open: it was made just now
	}
	return m
}

// begin counts a call and asks its hook.
func (m *Mem) begin(op Op) error {
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
func (m *Mem) beginWrite(op Op) error {
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

// poison is called with disk.mu held. The first cause stays, unless the power is cut.
func (m *Mem) poison(err error) {
	if m.failed == nil || errors.Is(err, ErrPowerCut) {
		m.failed = err
	}
	m.changed.Broadcast()
}

// exclusive panics if a call of the same group is under way; the function returned ends this one.
func (m *Mem) exclusive(group string) (end func()) {
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
