// Package pages reads and checks the pages of a bbolt file without bbolt.
//
// It cannot fault, recurse or loop, whatever the bytes are: invalid data causes an error that wraps
// storage.ErrDamaged. It knows trees, entries and their checksums, but not the meaning of entries.
package pages

import (
	"bytes"
	"sort"
)

// A page is a checked page of a tree: its position, its layout and the order of its keys are valid,
// and in a leaf of entries the checksums. The zero page is no page.
type page struct {
	buf   []byte // the page with its overflow; reused by the next read
	id    uint64
	valid bool
	leaf  bool
	n     int
	size  int // number of bytes in use
}

func (p *page) u32(at int) int { return int(native.Uint32(p.buf[at:])) }

// span returns the start of the key of element i, and the sizes of key and value. It must not be
// called before layout has succeeded.
func (p *page) span(i int) (at, keySize, valueSize int) {
	e := pageHeader + i*ElementSize
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

// entry returns key and value of element i of a leaf, which are adjacent.
func (p *page) entry(i int) (entry []byte, keySize int) {
	at, k, v := p.span(i)
	return p.buf[at : at+k+v : at+k+v], k
}

func (p *page) child(i int) uint64 { return native.Uint64(p.buf[pageHeader+i*ElementSize+8:]) }

// overflow returns the number of pages after the first.
func (p *page) overflow() uint64 { return uint64(native.Uint32(p.buf[12:])) }

// read reads page id of tree t into p.
func (p *page) read(t *Tree, id uint64) error {
	p.valid = false
	p.id = id
	tx := t.Tx
	if id < 2 || id >= tx.HighWater {
		return Damaged("page %d is not among the %d pages in use", id, tx.HighWater)
	}
	p.buf = resize(p.buf, tx.PageSize)
	if err := tx.readAt(p.buf, id); err != nil {
		return err
	}
	size, err := p.layout(tx.PageSize)
	if err != nil {
		return err
	}
	p.size = size
	pages := (size + tx.PageSize - 1) / tx.PageSize
	if p.overflow() != uint64(pages-1) || id+uint64(pages) > tx.HighWater {
		return Damaged("page %d says that it overflows into %d pages, its content into %d", id, p.overflow(), pages-1)
	}
	if pages > 1 {
		p.buf = resize(p.buf, pages*tx.PageSize)
		if err := tx.readAt(p.buf[tx.PageSize:], id+1); err != nil {
			return err
		}
	}
	return p.check(t)
}

// readInline reads the page in a bucket's value into p.
func (p *page) readInline(t *Tree) error {
	p.valid = false
	p.id = 0
	p.buf = append(p.buf[:0], t.inline...)
	size, err := p.layout(len(p.buf))
	if err != nil {
		return err
	}
	if size != len(p.buf) || p.overflow() != 0 || !p.leaf {
		return Damaged("an inline bucket of %d bytes has %d bytes of content", len(p.buf), size)
	}
	return p.check(t)
}

// layout reads the header and the elements, which must lie within the first limit bytes. It returns
// the number of bytes that the page occupies.
func (p *page) layout(limit int) (size int, err error) {
	if len(p.buf) < pageHeader {
		return 0, Damaged("page %d has no header", p.id)
	}
	if id := native.Uint64(p.buf); id != p.id {
		return 0, Damaged("page %d says that it is page %d", p.id, id)
	}
	switch flags := native.Uint16(p.buf[8:]); flags {
	case branchFlag:
		p.leaf = false
	case leafFlag:
		p.leaf = true
	default:
		return 0, Damaged("page %d of a tree has type %#x", p.id, flags)
	}
	p.n = int(native.Uint16(p.buf[10:]))
	next := uint64(pageHeader + p.n*ElementSize)
	if next > uint64(limit) || p.n == 0 && !p.leaf {
		return 0, Damaged("page %d says that it has %d elements", p.id, p.n)
	}
	for i := range p.n {
		e := pageHeader + i*ElementSize
		pos, k, v := p.u32(e), p.u32(e+4), 0
		if p.leaf {
			pos, k, v = p.u32(e+4), p.u32(e+8), p.u32(e+12)
		}
		// The numbers have 32 bits and may have any value, so compare them in 64.
		if uint64(e)+uint64(uint32(pos)) != next || k == 0 {
			return 0, Damaged("page %d: element %d is not where it belongs", p.id, i)
		}
		if next += uint64(uint32(k)) + uint64(uint32(v)); next > maxPageBytes {
			return 0, Damaged("page %d: element %d has an impossible size", p.id, i)
		}
	}
	return int(next), nil
}

// maxPageBytes is more than a page of bbolt can have.
const maxPageBytes = 1 << 28

// check checks the keys and values of a page whose layout is valid.
func (p *page) check(t *Tree) error {
	for i := range p.n {
		key := p.key(i)
		if i > 0 && bytes.Compare(p.key(i-1), key) >= 0 {
			return Damaged("page %d: key %d is out of order", p.id, i)
		}
		if !p.leaf {
			continue
		}
		wantFlags := uint32(0)
		if t.Dirs {
			wantFlags = dirEntry
		}
		if flags := native.Uint32(p.buf[pageHeader+i*ElementSize:]); flags != wantFlags {
			return Damaged("page %d: element %d has flags %#x", p.id, i, flags)
		}
		if t.Dirs {
			continue
		}
		if entry, k := p.entry(i); !intact(t.Seed, entry, k) {
			return Damaged("page %d: checksum of entry %d (%s)", p.id, i, t.What)
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

func resize(b []byte, n int) []byte {
	if cap(b) >= n {
		return b[:n]
	}
	return append(b[:cap(b)], make([]byte, n-cap(b))...)
}
