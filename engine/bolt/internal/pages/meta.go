package pages

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/bits"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A file has two meta pages. A transaction overwrites the older one; the newer one is valid:
//
//	page header | magic u32 | version u32 | page size u32 | flags u32 | root u64 | sequence u64 |
//	freelist u64 | high water u64 | txid u64 | FNV-1a 64 of all that |
const (
	metaSize    = 64
	metaSumAt   = metaSize - 8
	metaMagic   = 0xED0CDAED
	metaVersion = 2

	minPageSize = 1 << 10
	maxPageSize = 1 << 24
)

// A Meta is the content of a meta page.
type Meta struct {
	PageSize  int
	RootPage  uint64
	Freelist  uint64 // page of the list of free pages
	HighWater uint64
	ID        uint64 // number of the transaction
}

var (
	errNotBolt   = errors.New("not a bbolt file")
	errNewerBolt = errors.New("written by a newer bbolt")
	errBadMeta   = errors.New("meta page with a wrong checksum")
)

func parseMeta(b []byte) (Meta, error) {
	switch version := native.Uint32(b[4:]); {
	case native.Uint32(b) != metaMagic:
		return Meta{}, errNotBolt
	case !metaIntact(b):
		return Meta{}, errBadMeta
	case version > metaVersion:
		return Meta{}, errNewerBolt
	case version < metaVersion, native.Uint64(b[24:]) != 0:
		return Meta{}, errNotBolt
	}
	return Meta{
		PageSize:  int(native.Uint32(b[8:])),
		RootPage:  native.Uint64(b[16:]),
		Freelist:  native.Uint64(b[32:]),
		HighWater: native.Uint64(b[40:]),
		ID:        native.Uint64(b[48:]),
	}, nil
}

func metaIntact(b []byte) bool {
	h := fnv.New64a()
	h.Write(b[:metaSumAt])
	return native.Uint64(b[metaSumAt:]) == h.Sum64()
}

// ReadMetas returns the meta page that bbolt will use, and the older one if it is valid.
func ReadMetas(f io.ReaderAt, pageSize int) (newer Meta, older *Meta, err error) {
	var ms [2]Meta
	var errs [2]error
	for i := range ms {
		b := make([]byte, metaSize)
		if _, errs[i] = f.ReadAt(b, int64(i*pageSize)+pageHeader); errs[i] == nil {
			ms[i], errs[i] = parseMeta(b)
		}
	}
	switch {
	case errs[0] != nil && errs[1] != nil:
		return Meta{}, nil, errors.Join(errs[0], errs[1])
	case errs[0] != nil:
		return ms[1], nil, nil //nolint:nilerr // the other meta page replaces a torn one
	case errs[1] != nil:
		return ms[0], nil, nil //nolint:nilerr // as above
	case ms[0].ID > ms[1].ID:
		return ms[0], &ms[1], nil
	}
	return ms[1], &ms[0], nil
}

// findPageSize reads the page size from a valid meta page.
func findPageSize(f io.ReaderAt) (int, error) {
	b := make([]byte, metaSize)
	var first error
	for at := int64(0); at <= maxPageSize; at = max(2*at, minPageSize) {
		if _, err := f.ReadAt(b, at+pageHeader); err != nil {
			if errors.Is(err, io.EOF) {
				err = errNotBolt
			}
			if first == nil {
				first = err
			}
			break
		}
		m, err := parseMeta(b)
		if err == nil {
			if m.PageSize < minPageSize || m.PageSize > maxPageSize || bits.OnesCount(uint(m.PageSize)) != 1 {
				return 0, Damaged("the meta page says that pages have %d bytes", m.PageSize)
			}
			return m.PageSize, nil
		}
		if first == nil {
			first = err
		}
		if errors.Is(err, errNewerBolt) {
			return 0, fmt.Errorf("%w: %s: %w", storage.ErrNewerFormat, FileName, err)
		}
	}
	return 0, first
}

// examineMetas checks the meta pages after a crash. An invalid page can be the result of a power
// failure during an unconfirmed write; then the other one is used, and nothing is missing. This is
// impossible if the page differs from a valid one in a single bit, or lacks bytes that the old and
// the new page have in common: then a complete page was damaged, and a confirmed transaction would
// be lost.
func examineMetas(f io.ReaderAt, pageSize int) (Meta, error) {
	newer, older, err := ReadMetas(f, pageSize)
	if err != nil {
		return Meta{}, Damaged("both meta pages: %w", err)
	}
	if older != nil {
		if older.ID+1 != newer.ID {
			return Meta{}, Damaged("the meta pages are of transactions %d and %d", older.ID, newer.ID)
		}
		if older.PageSize != newer.PageSize || newer.PageSize != pageSize {
			return Meta{}, Damaged("the meta pages have page sizes %d and %d", older.PageSize, newer.PageSize)
		}
		return newer, nil
	}
	for i := range 2 {
		b := make([]byte, metaSize)
		if _, err := f.ReadAt(b, int64(i*pageSize)+pageHeader); err != nil {
			return Meta{}, Damaged("meta page %d: %w", i, err)
		}
		if metaIntact(b) && native.Uint32(b) == metaMagic {
			continue
		}
		if native.Uint32(b) != metaMagic || native.Uint32(b[4:]) != metaVersion ||
			native.Uint32(b[8:]) != uint32(pageSize) || native.Uint32(b[12:]) != 0 {
			return Meta{}, Damaged("meta page %d is not one", i)
		}
		for bit := range metaSize * 8 {
			b[bit/8] ^= 1 << (bit % 8)
			whole := metaIntact(b)
			b[bit/8] ^= 1 << (bit % 8)
			if whole {
				return Meta{}, Damaged("meta page %d has a flipped bit", i)
			}
		}
	}
	return newer, nil
}

// Newest returns the newest transaction of a file of the given size after a crash, and its meta
// page.
func Newest(f io.ReaderAt, size int64) (Tx, Meta, error) {
	pageSize, err := findPageSize(f)
	if err != nil {
		if errors.Is(err, storage.ErrNewerFormat) {
			return Tx{}, Meta{}, err
		}
		return Tx{}, Meta{}, Damaged("%w", err)
	}
	m, err := examineMetas(f, pageSize)
	if err != nil {
		return Tx{}, Meta{}, err
	}
	if m.HighWater < 4 || m.HighWater > uint64(size)/uint64(pageSize) {
		return Tx{}, Meta{}, Damaged("%d pages are in use, in a file of %d bytes", m.HighWater, size)
	}
	return Tx{File: f, PageSize: pageSize, RootPage: m.RootPage, HighWater: m.HighWater, ID: m.ID}, m, nil
}
