package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/hapax-dev/hapax/internal/crc32c"
)

// The pages of bbolt (its format version 2), in the byte order of the machine:
//
//	page            | id u64 | flags u16 | count u16 | overflow u32 | elements | keys and values, without gaps |
//	leaf element    | flags u32 | pos u32 | key size u32 | value size u32 |
//	branch element  | pos u32 | key size u32 | child u64 |
//	bucket value    | root u64 | sequence u64 | if root is 0: a leaf page with id 0 |
//
// pos counts from the element's own first byte. A page occupies 1 + overflow pages of the file. A
// branch element's key is the first key of its child.
const (
	pageHeader  = 16
	elementSize = 16
	dirHeader   = 16

	branchFlag   = 0x01
	leafFlag     = 0x02
	freelistFlag = 0x10

	dirEntry = 0x01 // flags of a leaf element whose value is a bucket

	maxDepth = 32
)

var native = binary.NativeEndian

// A page is one page of a tree that was checked when it was read: its position, its layout, the
// order of its keys and, in a leaf of entries, every entry's checksum. The zero page is none.
type page struct {
	buf   []byte // the page with its overflow; reused by the next read
	id    uint64
	valid bool
	leaf  bool
	n     int
	size  int // bytes in use
}

func (p *page) u32(at int) int { return int(native.Uint32(p.buf[at:])) }

// span returns where element i's key begins, and the sizes of key and value. It may be called after
// layout has succeeded.
func (p *page) span(i int) (at, keySize, valueSize int) {
	e := pageHeader + i*elementSize
	if p.leaf {
		return e + p.u32(e+4), p.u32(e + 8), p.u32(e + 12)
	}
	return e + p.u32(e), p.u32(e + 4), 0
}

func (p *page) key(i int) []byte {
	at, k, _ := p.span(i)
	return p.buf[at : at+k : at+k]
}

func (p *page) value(i int) []byte {
	at, k, v := p.span(i)
	return p.buf[at+k : at+k+v : at+k+v]
}

// entry returns key and value of a leaf's element i, which lie next to each other.
func (p *page) entry(i int) (entry []byte, keySize int) {
	at, k, v := p.span(i)
	return p.buf[at : at+k+v : at+k+v], k
}

func (p *page) child(i int) uint64 { return native.Uint64(p.buf[pageHeader+i*elementSize+8:]) }

// overflow is the number of pages beyond the first.
func (p *page) overflow() uint64 { return uint64(native.Uint32(p.buf[12:])) }

// read fills p with the page id of tree t.
func (p *page) read(t *tree, id uint64) error {
	p.valid = false
	p.id = id
	tx := t.at
	if id < 2 || id >= tx.highWater {
		return damaged("page %d is not among the %d pages in use", id, tx.highWater)
	}
	p.buf = resize(p.buf, tx.pageSize)
	if err := tx.readAt(p.buf, id); err != nil {
		return err
	}
	size, err := p.layout(tx.pageSize)
	if err != nil {
		return err
	}
	p.size = size
	pages := (size + tx.pageSize - 1) / tx.pageSize
	if p.overflow() != uint64(pages-1) || id+uint64(pages) > tx.highWater {
		return damaged("page %d says that it overflows into %d pages, its content into %d", id, p.overflow(), pages-1)
	}
	if pages > 1 {
		p.buf = resize(p.buf, pages*tx.pageSize)
		if err := tx.readAt(p.buf[tx.pageSize:], id+1); err != nil {
			return err
		}
	}
	return p.check(t)
}

// readInline fills p with the page that is stored in a bucket's value.
func (p *page) readInline(t *tree) error {
	p.valid = false
	p.id = 0
	p.buf = append(p.buf[:0], t.inline...)
	size, err := p.layout(len(p.buf))
	if err != nil {
		return err
	}
	if size != len(p.buf) || p.overflow() != 0 || !p.leaf {
		return damaged("an inline bucket of %d bytes has %d bytes of content", len(p.buf), size)
	}
	return p.check(t)
}

// layout reads the header and walks the elements, which must lie within the first limit bytes. It
// returns the bytes that the page occupies.
func (p *page) layout(limit int) (size int, err error) {
	if len(p.buf) < pageHeader {
		return 0, damaged("page %d has no header", p.id)
	}
	if id := native.Uint64(p.buf); id != p.id {
		return 0, damaged("page %d says that it is page %d", p.id, id)
	}
	switch flags := native.Uint16(p.buf[8:]); flags {
	case branchFlag:
		p.leaf = false
	case leafFlag:
		p.leaf = true
	default:
		return 0, damaged("page %d of a tree has type %#x", p.id, flags)
	}
	p.n = int(native.Uint16(p.buf[10:]))
	next := uint64(pageHeader + p.n*elementSize)
	if next > uint64(limit) || p.n == 0 && !p.leaf {
		return 0, damaged("page %d says that it has %d elements", p.id, p.n)
	}
	for i := range p.n {
		e := pageHeader + i*elementSize
		pos, k, v := p.u32(e), p.u32(e+4), 0
		if p.leaf {
			pos, k, v = p.u32(e+4), p.u32(e+8), p.u32(e+12)
		}
		// The numbers are 32 bits wide and may have any value: compare them in 64.
		if uint64(e)+uint64(uint32(pos)) != next || k == 0 {
			return 0, damaged("page %d: element %d is not where it belongs", p.id, i)
		}
		if next += uint64(uint32(k)) + uint64(uint32(v)); next > maxPageBytes {
			return 0, damaged("page %d: element %d has an impossible size", p.id, i)
		}
	}
	return int(next), nil
}

// maxPageBytes is more than bbolt can put into one page.
const maxPageBytes = 1 << 28

// check checks the keys and values of a page with a sound layout.
func (p *page) check(t *tree) error {
	for i := range p.n {
		key := p.key(i)
		if i > 0 && bytes.Compare(p.key(i-1), key) >= 0 {
			return damaged("page %d: key %d is out of order", p.id, i)
		}
		if !p.leaf {
			continue
		}
		wantFlags := uint32(0)
		if t.dirs {
			wantFlags = dirEntry
		}
		if flags := native.Uint32(p.buf[pageHeader+i*elementSize:]); flags != wantFlags {
			return damaged("page %d: element %d has flags %#x", p.id, i, flags)
		}
		if t.dirs {
			continue
		}
		if entry, k := p.entry(i); !intact(t.seed, entry, k) {
			return damaged("page %d: checksum of entry %d (%s)", p.id, i, t.what)
		}
	}
	p.valid = true
	return nil
}

// floor returns the last element whose key is at most key, or the first one.
func (p *page) floor(key []byte) int {
	i := sort.Search(p.n, func(i int) bool { return bytes.Compare(p.key(i), key) > 0 })
	return max(i-1, 0)
}

// ceil returns the first element whose key is at least key, or p.n.
func (p *page) ceil(key []byte) int {
	return sort.Search(p.n, func(i int) bool { return bytes.Compare(p.key(i), key) >= 0 })
}

// A readTx is the state after one transaction: the root of its tree, and how to read its pages.
// They are read with pread, never through bbolt's mapping: a page that cannot be read is an error
// and not a signal.
type readTx struct {
	file      io.ReaderAt
	pageSize  int
	root      uint64 // page of the tree of top-level buckets
	highWater uint64 // pages in use are below
	txid      uint64
}

func (tx *readTx) readAt(buf []byte, id uint64) error {
	_, err := tx.file.ReadAt(buf, int64(id)*int64(tx.pageSize))
	if errors.Is(err, io.EOF) {
		return damaged("page %d lies behind the end of the file", id)
	}
	if err != nil {
		return fmt.Errorf("hapax: reading page %d of %s: %w", id, fileName, err)
	}
	return nil
}

// A tree is one B+tree of a readTx: of entries, or of buckets.
type tree struct {
	at     *readTx
	what   string // for messages
	root   uint64 // 0: the tree is the page inline
	inline []byte
	dirs   bool
	seed   uint32 // of the entries' checksums
}

// parseDir reads the value of a bucket's entry.
func (t *tree) parseDir(value []byte) error {
	if len(value) < dirHeader || native.Uint64(value[8:]) != 0 {
		return damaged("the entry of bucket %s is malformed", t.what)
	}
	t.root = native.Uint64(value)
	if (t.root == 0) == (len(value) == dirHeader) {
		return damaged("the entry of bucket %s has root %d and %d bytes", t.what, t.root, len(value))
	}
	t.inline = value[dirHeader:]
	return nil
}

func resize(b []byte, n int) []byte {
	if cap(b) >= n {
		return b[:n]
	}
	return append(b[:cap(b)], make([]byte, n-cap(b))...)
}

// Every stored value ends in a checksum, in little endian:
//
//	CRC-32C(space, prefix, key, record) xor (key size * 0x9E3779B1)
//
// space and prefix identify the entry's bucket (spaces below), so that an entry is not mistaken for
// one of another bucket; prefix is empty except for claims.
const (
	sealSize = 4
	keyFold  = 0x9E3779B1
)

// The spaces. Stored forever.
const (
	claimSpace   = 'c'
	stateSpace   = 's'
	journalSpace = 'j'
	metaSpace    = 'm'
	sumSpace     = 'a'
)

func seedOf(space byte, prefix []byte) uint32 {
	return crc32c.Update(crc32c.Checksum([]byte{space}), prefix)
}

// appendEntry appends key, record and checksum.
func appendEntry(dst []byte, seed uint32, key, record []byte) []byte {
	from := len(dst)
	dst = append(append(dst, key...), record...)
	return binary.LittleEndian.AppendUint32(dst, sum32(seed, dst[from:], len(key)))
}

func sum32(seed uint32, body []byte, keySize int) uint32 {
	return crc32c.Update(seed, body) ^ uint32(keySize)*keyFold
}

func intact(seed uint32, entry []byte, keySize int) bool {
	n := len(entry) - sealSize
	return n >= keySize && binary.LittleEndian.Uint32(entry[n:]) == sum32(seed, entry[:n], keySize)
}
