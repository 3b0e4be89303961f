package pebble

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// An attester knows what is durable, and attests it.
type attester struct {
	*core
	durable   atomic.Uint64 // the newest batch that would survive a power cut
	progress  chan struct{} // something became durable, for attest
	stop      chan struct{}
	attesting sync.Mutex // held while an attestation is written
}

const (
	// attestIdle is how long no batch must have become durable before the last ones are attested.
	attestIdle = 20 * time.Millisecond
	// attestBusy is how often batches are attested while more of them come.
	attestBusy = time.Second
)

// attest runs in the background until stop is closed. After a flush it attests soon, since it takes
// its part of the log away: then the MANIFEST alone knows of its table.
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
			flushed := a.disk.flushes.Load()
			now := attestation{a.durable.Load(), a.disk.manifests.durable()}
			idle := now.seq == seq
			seq = now.seq
			if flushed == flushes && !idle && time.Since(wrote) < attestBusy {
				continue
			}
			flushes = flushed
			if now == done {
				break
			}
			if idle && a.promise(now.seq) != nil || a.attestNow() != nil {
				return // poisoned
			}
			done, wrote = now, time.Now()
			if idle {
				break
			}
		}
	}
}

// attestNow attests what is durable at this moment.
func (a *attester) attestNow() error {
	a.attesting.Lock()
	defer a.attesting.Unlock()
	return writeAttestation(a.disk, attestation{a.durable.Load(), a.disk.manifests.durable()})
}

// promise writes to the log alone that all batches up to seq are durable, for chunks.go to find. It
// need not be durable itself.
func (a *attester) promise(seq uint64) error {
	return a.fault.write(func() error {
		return a.db.LogData(appendPromise(nil, seq, seq), pebble.NoSync)
	})
}

// noteProgress wakes attest up.
func (a *attester) noteProgress() {
	select {
	case a.progress <- struct{}{}:
	default:
	}
}
