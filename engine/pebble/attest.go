package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// An attestation says what was durable at some moment, so that a store that has less is known to be
// damaged. It always exists, and is rewritten in the background:
//
//	+----------+-------------+---------------+------+-------------------+--------+
//	| HAPAXATT | seq u64 BE  | length u64 BE | name of the MANIFEST ... | CRC-32C|
//	+----------+-------------+---------------+--------------------------+--------+
//
// length is how much of that MANIFEST, which was the current one, was durable.
type attestation struct {
	seq      uint64
	manifest position
}

const (
	attestName  = "hapax-attest"
	attestMagic = "HAPAXATT"
)

func (a attestation) encode() []byte {
	b := append([]byte(nil), attestMagic...)
	b = binary.BigEndian.AppendUint64(b, a.seq)
	b = binary.BigEndian.AppendUint64(b, a.manifest.size)
	return sidecar.Seal(append(b, a.manifest.name...))
}

func decodeAttestation(b []byte) (attestation, error) {
	const fixed = len(attestMagic) + 16
	body, err := sidecar.Unseal(b)
	if err != nil {
		return attestation{}, err
	}
	if len(body) < fixed || string(body[:len(attestMagic)]) != attestMagic {
		return attestation{}, errors.New("not an attestation")
	}
	return attestation{
		seq: binary.BigEndian.Uint64(body[len(attestMagic):]),
		manifest: position{
			name: string(body[fixed:]),
			size: binary.BigEndian.Uint64(body[len(attestMagic)+8:]),
		},
	}, nil
}

func (d *disk) readAttestation() (attestation, error) {
	b, err := readFile(d, d.path(attestName))
	if errors.Is(err, fs.ErrNotExist) {
		return attestation{}, fmt.Errorf("%w: %s is missing", storage.ErrDamaged, attestName)
	}
	if err != nil {
		return attestation{}, err
	}
	a, err := decodeAttestation(b)
	if err != nil {
		return attestation{}, fmt.Errorf("%w: %s: %w", storage.ErrDamaged, attestName, err)
	}
	return a, nil
}

func (d *disk) writeAttestation(a attestation) error {
	return d.writeSealed(attestName, a.encode())
}

func (d *disk) writeSealed(name string, b []byte) error {
	err := sidecar.Write(sidecars{d}, d.dir, name, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
	if failed := d.fault.get(); failed != nil {
		return failed
	}
	return err
}

const (
	// attestIdle is how long no batch must have become durable before the last ones are attested.
	attestIdle = 20 * time.Millisecond
	// attestBusy is how often batches are attested while more of them come.
	attestBusy = time.Second
)

// attest runs in the background until stop is closed. After a flush it attests soon, since it takes
// its part of the log away: then the MANIFEST alone knows of its table.
func (s *Store) attest() {
	defer s.background.Done()
	var done attestation
	var flushes uint64
	wrote := time.Now()
	timer := time.NewTimer(0)
	<-timer.C
	for {
		select {
		case <-s.progress:
		case <-s.stop:
			return
		}
		for seq := s.durable.Load(); ; {
			timer.Reset(attestIdle)
			select {
			case <-timer.C:
			case <-s.stop:
				return
			}
			flushed := s.disk.flushes.Load()
			now := attestation{s.durable.Load(), s.disk.durableManifest()}
			idle := now.seq == seq
			seq = now.seq
			if flushed == flushes && !idle && time.Since(wrote) < attestBusy {
				continue
			}
			flushes = flushed
			if now == done {
				break
			}
			if idle && s.promise(now.seq) != nil || s.attestNow() != nil {
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
func (s *Store) attestNow() error {
	s.attesting.Lock()
	defer s.attesting.Unlock()
	return s.disk.writeAttestation(attestation{s.durable.Load(), s.disk.durableManifest()})
}

// promise writes to the log alone that all batches up to seq are durable, for chunks.go to find. It
// need not be durable itself.
func (s *Store) promise(seq uint64) error {
	return s.fault.write(func() error {
		return s.db.LogData(appendPromise(nil, seq, seq), pebble.NoSync)
	})
}

// noteProgress wakes attest up.
func (s *Store) noteProgress() {
	select {
	case s.progress <- struct{}{}:
	default:
	}
}
