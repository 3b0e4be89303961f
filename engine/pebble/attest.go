package pebble

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// An attester tracks which data is durable, and attests it.
type attester struct {
	core      *core
	durable   atomic.Uint64 // the newest batch that would survive a power failure
	progress  chan struct{} // a batch became durable, for attest
	stop      chan struct{}
	attesting sync.Mutex // held while an attestation is written
}

const (
	// attestIdle is how long no batch must have become durable before the last ones are attested.
	attestIdle = 20 * time.Millisecond
	// attestBusy is the interval of attestations while more batches become durable.
	attestBusy = time.Second
)

// attest runs in the background until stop is closed. After a flush it attests soon, because the
// flush removes a part of the log: then only the MANIFEST refers to its table.
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

// recordDurable writes a durability record to the log only: all batches up to seq are durable. chunks.go
// reads it. It need not be durable itself.
func (a *attester) recordDurable(seq uint64) error {
	return a.core.fault.write(func() error {
		return a.core.db.LogData(appendDurability(nil, seq, seq), pebble.NoSync)
	})
}

// noteProgress wakes attest.
func (a *attester) noteProgress() {
	select {
	case a.progress <- struct{}{}:
	default:
	}
}
