package pebble

import (
	"bytes"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/internal/fuzztest"
)

// The fuzz targets check the decoders of the store's own files for three promises: none panics, none
// allocates more than its input justifies, and the bytes that it accepts are the encoding of the
// result. The checksum is also made right, so that the input gets past it.

func decodes(t *testing.T, input []byte, decode func([]byte) (encoded []byte, err error)) {
	t.Helper()
	body := input[:max(len(input)-4, 0):max(len(input)-4, 0)]
	for _, sealed := range [][]byte{input, sidecar.Seal(body)} {
		var encoded []byte
		var err error
		fuzztest.Frugal(t, sealed, func() { encoded, err = decode(sealed) })
		if err == nil && !bytes.Equal(encoded, sealed) {
			t.Fatalf("%x is accepted, but would be written as %x", sealed, encoded)
		}
	}
}

// FuzzClean checks the record of a clean close.
func FuzzClean(f *testing.F) {
	f.Add(cleanRecord{seq: 7}.encode())
	f.Add(cleanRecord{seq: 1 << 40, files: []fileSum{{"000012.sst", 1 << 20, 0}, {"MANIFEST-000001", 5, 0xfedcba98}, {"", 0, 0}}}.encode())
	f.Add(sidecar.Seal(append(cleanRecord{seq: 7}.encode()[:16], 0x80, 0x00, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2)))
	f.Add(sidecar.Seal(append(cleanRecord{seq: 7}.encode()[:16], 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01)))
	f.Fuzz(func(t *testing.T, input []byte) {
		decodes(t, input, func(b []byte) ([]byte, error) {
			r, err := decodeClean(b)
			return r.encode(), err
		})
	})
}

func FuzzAttestation(f *testing.F) {
	f.Add(attestation{seq: 7, manifest: position{"MANIFEST-000001", 99}}.encode())
	f.Add(attestation{}.encode())
	f.Add([]byte(attestMagic + "0000")) // nothing behind the magic and the checksum
	f.Fuzz(func(t *testing.T, input []byte) {
		decodes(t, input, func(b []byte) ([]byte, error) {
			a, err := decodeAttestation(b)
			return a.encode(), err
		})
	})
}
