package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"os"
	"path/filepath"
	"testing"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/internal/fuzztest"
)

// The fuzz targets check the readers of the files for three promises: none panics, none allocates
// more than its input justifies, and what is accepted is sound. Every error is ErrDamaged. Checksums
// are made right first, so that the input gets past them.

func FuzzMetas(f *testing.F) {
	const fuzzPage, metaAt, metaSize = 4096, 16, 64 // bytes of a page, and the meta in it
	dir := filepath.Join(f.TempDir(), "store")
	if err := sampleStore(f, dir).Close(); err != nil {
		f.Fatal(err)
	}
	sample, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sample[metaAt:metaAt+metaSize], sample[fuzzPage+metaAt:fuzzPage+metaAt+metaSize])
	f.Fuzz(func(t *testing.T, one, two []byte) {
		file := bytes.Clone(sample)
		for i, m := range [][]byte{one, two} {
			at := file[i*fuzzPage+metaAt:][:metaSize]
			copy(at, m)
			h := fnv.New64a()
			h.Write(at[:metaSize-8])
			binary.NativeEndian.PutUint64(at[metaSize-8:], h.Sum64())
		}
		tx, newest, err := pages.Newest(bytes.NewReader(file), int64(len(file)))
		if err == nil {
			fuzztest.Frugal(t, file, func() { err = (&readTx{tx}).check(t.Context(), newest.Freelist, errFirst) })
		}
		if err != nil && !errors.Is(err, storage.ErrDamaged) && !errors.Is(err, storage.ErrNewerFormat) {
			t.Fatal(err)
		}
	})
}

// FuzzClean checks the record of a clean close.
func FuzzClean(f *testing.F) {
	f.Add((&clean{uuid: [16]byte{1}, incarnation: 2, seq: 3, txid: 4, size: 5, hash: 6}).encode())
	f.Fuzz(func(t *testing.T, input []byte) {
		for _, sealed := range [][]byte{input, sidecar.Seal(input[:max(len(input)-4, 0):max(len(input)-4, 0)])} {
			r, err := parseClean(sealed)
			if err == nil && !bytes.Equal(r.encode(), sealed) {
				t.Fatalf("%x is accepted, but would be written as %x", sealed, r.encode())
			}
		}
	})
}
