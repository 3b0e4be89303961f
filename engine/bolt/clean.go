package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/cespare/xxhash/v2"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// The file CLEAN means that the store was closed after its last write. It has a checksum of
// claims.bolt, and is removed before the file is next changed:
//
//	| HAPAXCLN | format u32 | uuid 16 | incarnation u64 | seq u64 | txid u64 | file size u64 | xxhash64 of the file | CRC-32C |
//
// Numbers are big endian.
type clean struct {
	uuid        [16]byte
	incarnation uint64
	seq         uint64
	txid        uint64
	size        uint64
	hash        uint64
}

const (
	cleanMagic  = "HAPAXCLN"
	cleanFormat = 1
	cleanSize   = 8 + 4 + 16 + 5*8
)

func (r *clean) encode() []byte {
	b := append(make([]byte, 0, cleanSize+4), cleanMagic...)
	b = binary.BigEndian.AppendUint32(b, cleanFormat)
	b = append(b, r.uuid[:]...)
	for _, v := range []uint64{r.incarnation, r.seq, r.txid, r.size, r.hash} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return sidecar.Seal(b)
}

func parseClean(b []byte) (r clean, err error) {
	body, err := sidecar.Unseal(b)
	if err != nil {
		return clean{}, err
	}
	if len(body) != cleanSize || string(body[:8]) != cleanMagic || binary.BigEndian.Uint32(body[8:]) != cleanFormat {
		return clean{}, errors.New("not a record of a clean close")
	}
	copy(r.uuid[:], body[12:])
	for i, v := range []*uint64{&r.incarnation, &r.seq, &r.txid, &r.size, &r.hash} {
		*v = binary.BigEndian.Uint64(body[28+8*i:])
	}
	return r, nil
}

// readClean returns the record of a clean close. found is false if there is none.
func readClean(dir *storedir.Dir) (r clean, found bool, err error) {
	b, err := dir.ReadFile(cleanName)
	if errors.Is(err, fs.ErrNotExist) {
		return clean{}, false, nil
	}
	if err != nil {
		return clean{}, false, fmt.Errorf("hapax: reading %s: %w", cleanName, err)
	}
	if r, err = parseClean(b); err != nil {
		return clean{}, false, fmt.Errorf("%w: %s: %w (without that file, the next open checks every entry instead)",
			storage.ErrDamaged, cleanName, err)
	}
	return r, true, nil
}

// attest compares the file with the record of its clean close.
func (r *clean) attest(f *os.File, id storage.Identity) error {
	if r.uuid != id.UUID || r.incarnation != id.Incarnation {
		return pages.Damaged("%s is of another store", cleanName)
	}
	size, hash, err := hashFile(f)
	if err != nil {
		return err
	}
	if size != r.size || hash != r.hash {
		return pages.Damaged("it is not the file that was closed: %d bytes with checksum %016x, not %d with %016x", size, hash, r.size, r.hash)
	}
	return nil
}

// writeClean writes the record of a clean close.
func writeClean(files sidecar.FS, dir string, f *os.File, id storage.Identity, seq, txid uint64) error {
	size, hash, err := hashFile(f)
	if err != nil {
		return err
	}
	r := clean{uuid: id.UUID, incarnation: id.Incarnation, seq: seq, txid: txid, size: size, hash: hash}
	err = sidecar.Write(files, dir, cleanName, func(w io.Writer) error {
		_, err := w.Write(r.encode())
		return err
	})
	if err != nil {
		return fmt.Errorf("hapax: writing %s: %w", cleanName, err)
	}
	return nil
}

// hashFile reads the file once, from start to end.
func hashFile(f *os.File) (size, hash uint64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, fmt.Errorf("hapax: reading %s: %w", fileName, err)
	}
	h := xxhash.New()
	n, err := io.CopyBuffer(h, io.NewSectionReader(f, 0, info.Size()), make([]byte, 1<<20))
	if err != nil {
		return 0, 0, fmt.Errorf("hapax: reading %s: %w", fileName, err)
	}
	return uint64(n), h.Sum64(), nil
}
