package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sort"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/internal/decode"
)

// Close writes a cleanRecord as its last step; it is removed before the directory is changed again.
// It contains the name and size of every file, and the checksum of every file that has no checksums
// itself:
//
//	+----------+-------------+   for each file: +-------------+------+-------------+---------+   +--------+
//	| HAPAXCLN | seq u64 BE  |                  | len uvarint | name | size u64 BE | crc u32 |   | CRC-32C|
//	+----------+-------------+                  +-------------+------+-------------+---------+   +--------+
//
// crc is 0 for tables, whose blocks are checked when they are read.
type cleanRecord struct {
	seq   uint64
	files []fileSum
}

type fileSum struct {
	name string
	size uint64
	crc  uint32
}

const cleanMagic = "HAPAXCLN"

func (r cleanRecord) encode() []byte {
	b := append([]byte(nil), cleanMagic...)
	b = binary.BigEndian.AppendUint64(b, r.seq)
	for _, f := range r.files {
		b = binary.AppendUvarint(b, uint64(len(f.name)))
		b = append(b, f.name...)
		b = binary.BigEndian.AppendUint64(b, f.size)
		b = binary.BigEndian.AppendUint32(b, f.crc)
	}
	return sidecar.Seal(b)
}

var errNotClean = errors.New("not a record of a clean close")

func decodeClean(b []byte) (r cleanRecord, err error) {
	b, err = sidecar.Unseal(b)
	if err != nil {
		return r, err
	}
	if len(b) < len(cleanMagic)+8 || string(b[:len(cleanMagic)]) != cleanMagic {
		return r, errNotClean
	}
	r.seq = binary.BigEndian.Uint64(b[len(cleanMagic):])
	d := decode.Decoder{Rest: b[len(cleanMagic)+8:]}
	for len(d.Rest) > 0 {
		name := d.Bytes()
		numbers := d.Take(12)
		if d.Bad {
			return cleanRecord{}, errNotClean
		}
		r.files = append(r.files, fileSum{string(name), binary.BigEndian.Uint64(numbers), binary.BigEndian.Uint32(numbers[8:])})
	}
	return r, nil
}

// sumFiles lists the directory.
func sumFiles(d *failStopFS) ([]fileSum, error) {
	names, err := d.names()
	if err != nil {
		return nil, err
	}
	sort.Strings(names)
	var files []fileSum
	for _, name := range names {
		if !inCleanRecord(name) {
			continue
		}
		f := fileSum{name: name}
		if isTable(name) {
			info, err := d.Stat(d.path(name))
			if err != nil {
				return nil, err
			}
			f.size = uint64(info.Size())
		} else if f.size, f.crc, err = checksum(d, d.path(name)); err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// writeClean writes the record of the current directory.
func writeClean(d *failStopFS, seq uint64) error {
	files, err := sumFiles(d)
	if err != nil {
		return err
	}
	files = slices.DeleteFunc(files, func(f fileSum) bool { return isLog(f.name) && !d.ownLogs.has(f.name) })
	return writeSealed(d, cleanName, cleanRecord{seq, files}.encode())
}

// checkClean compares the directory with the record of its clean close. found is false if there is
// no record.
func checkClean(d *failStopFS) (found bool, err error) {
	b, err := readFile(d, d.path(cleanName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	r, err := decodeClean(b)
	if err != nil {
		return true, fmt.Errorf("%w: %s: %w", storage.ErrDamaged, cleanName, err)
	}
	files, err := sumFiles(d)
	if err != nil {
		return true, err
	}
	there := make(map[string]fileSum, len(files))
	for _, f := range files {
		there[f.name] = f
	}
	for _, want := range r.files {
		got, ok := there[want.name]
		switch {
		case !ok:
			return true, fmt.Errorf("%w: %s was there when the store was closed and is missing", storage.ErrDamaged, want.name)
		case got != want:
			return true, fmt.Errorf("%w: %s is not as it was when the store was closed", storage.ErrDamaged, want.name)
		}
		delete(there, want.name)
	}
	for name := range there {
		return true, fmt.Errorf("%w: %s was not there when the store was closed: if it is not the store's, move it away", storage.ErrDamaged, name)
	}
	return true, nil
}

// inCleanRecord reports whether a file affects the contents of the store.
func inCleanRecord(name string) bool {
	return isPebbleFile(name) || name == sidecar.IdentityName || name == attestName
}
