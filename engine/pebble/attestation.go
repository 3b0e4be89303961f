package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

const attestMagic = "HAPAXATT"

// An attestation records the durable state at some moment, so that a store with less data is
// detected as damaged. It always exists, and is rewritten in the background:
//
//	+----------+-------------+---------------+------+-------------------+--------+
//	| HAPAXATT | seq u64 BE  | length u64 BE | name of the MANIFEST ... | CRC-32C|
//	+----------+-------------+---------------+--------------------------+--------+
//
// length is the durable length of that MANIFEST, which was the current one.
type attestation struct {
	seq      uint64
	manifest position
}

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

func readAttestation(d *failStopFS) (attestation, error) {
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

func writeAttestation(d *failStopFS, a attestation) error {
	return writeSealed(d, attestName, a.encode())
}

// currentManifest returns the durable part of the MANIFEST, even if nothing was written to it since
// it was opened.
func currentManifest(d *failStopFS) position {
	if p := d.manifests.durable(); p.name != "" {
		return p
	}
	desc, err := pebble.Peek(d.dir, d)
	if err != nil || !desc.Exists {
		return position{}
	}
	data, err := readFile(d, desc.ManifestFilename)
	if err != nil {
		return position{}
	}
	return position{d.PathBase(desc.ManifestFilename), uint64(scanManifest(data).valid)}
}
