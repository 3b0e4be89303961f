package pebble

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// An attester tracks which data is durable, and writes attestations of it.
type attester struct {
	core      *core
	durable   atomic.Uint64 // newest batch that would survive a power failure
	unsynced  atomic.Uint64 // newest batch of a copy
	progress  chan struct{} // signals attest that a batch became durable
	stop      chan struct{}
	attesting sync.Mutex // held while an attestation is written
}

const (
	// attestIdle is the time without newly durable batches after which the last ones are attested.
	attestIdle = 20 * time.Millisecond
	// attestBusy is the interval of attestations while more batches become durable.
	attestBusy = time.Second
)

// attest runs in the background until stop is closed. It attests soon after a flush, because a
// flush removes a part of the log, and then only the MANIFEST refers to the new table.
func (a *attester) attest() {
	var done attestation
	var flushes uint64
	wrote := time.Now()
	timer := time.NewTimer(0)
	<-timer.C
	for {
		select {
		case <-a.progress:
		case <-a.stop:
			return
		}
		for seq := a.durable.Load(); ; {
			timer.Reset(attestIdle)
			select {
			case <-timer.C:
			case <-a.stop:
				return
			}
			flushed := a.core.disk.flushes.Load()
			now := attestation{a.durable.Load(), a.core.disk.manifests.durable()}
			idle := now.seq == seq
			seq = now.seq
			if flushed == flushes && !idle && time.Since(wrote) < attestBusy {
				continue
			}
			flushes = flushed
			if now == done {
				break
			}
			if idle && a.recordDurable(now.seq) != nil || a.attestNow() != nil {
				return // the store has failed
			}
			done, wrote = now, time.Now()
			if idle {
				break
			}
		}
	}
}

// attestNow attests the current durable state.
func (a *attester) attestNow() error {
	a.attesting.Lock()
	defer a.attesting.Unlock()
	return writeAttestation(a.core.disk, attestation{a.durable.Load(), a.core.disk.manifests.durable()})
}

// recordDurable writes a durability record to the log, which says that all batches up to seq are
// durable (see chunks.go). The record itself need not be durable.
func (a *attester) recordDurable(seq uint64) error {
	return a.core.fault.write(func() error {
		return a.core.db.LogData(appendDurability(nil, seq, seq), pebble.NoSync)
	})
}

// syncCopy makes the batches of a copy up to seq, which were applied, durable. The batches of another
// store are synced by its writer.
func (a *attester) syncCopy(seq uint64) error {
	durable := a.durable.Load()
	if a.core.o.copy == nil || durable >= seq {
		return nil
	}
	err := a.core.fault.write(func() error {
		return a.core.db.LogData(appendDurability(nil, durable, durable), pebble.Sync)
	})
	if err != nil {
		a.core.fault.set(fmt.Errorf("syncing the log: %w", err))
	}
	if err := a.core.fault.get(); err != nil {
		return err
	}
	for now := durable; now < seq && !a.durable.CompareAndSwap(now, seq); now = a.durable.Load() {
	}
	a.noteProgress()
	return nil
}

// noteProgress wakes attest.
func (a *attester) noteProgress() {
	select {
	case a.progress <- struct{}{}:
	default:
	}
}
