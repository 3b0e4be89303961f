package pages

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/fuzztest"
)

// The fuzz targets check the readers of the files for three promises: none panics, none allocates
// more than its input justifies, and what is accepted is sound. Every error is ErrDamaged. Checksums
// are made right first, so that the input gets past them.

// fuzzPage is the size of the pages of a fuzzed file.
const fuzzPage = 4096

// samplePages returns the pages of the trees of a store, and the freelist, from page 2 on.
func samplePages(f *testing.F) (pages [][]byte) {
	f.Helper()
	file, err := os.ReadFile(sample(f).file.Name())
	if err != nil {
		f.Fatal(err)
	}
	for at := 2 * fuzzPage; at+fuzzPage <= len(file); at += fuzzPage {
		page := bytes.Clone(file[at : at+fuzzPage])
		native.PutUint64(page, 2)
		pages = append(pages, page)
	}
	return pages
}

// fuzzed returns a transaction whose file has the input at page 2.
func fuzzed(input []byte) *Tx {
	file := append(make([]byte, 2*fuzzPage), input...)
	return &Tx{File: bytes.NewReader(file), PageSize: fuzzPage, HighWater: uint64(len(file) / fuzzPage)}
}

// reseal makes the checksums of the entries of a leaf right, in place.
func reseal(input []byte, id uint64, limit int) {
	p := page{buf: input, id: id}
	size, err := p.layout(min(limit, len(input)))
	if err != nil || !p.leaf || size > len(input) {
		return
	}
	for i := range p.n {
		if entry, k := p.entry(i); len(entry) >= k+SealSize {
			n := len(entry) - SealSize
			binary.LittleEndian.PutUint32(entry[n:], sum32(0, entry[:n], k))
		}
	}
}

// sound fails if a page that was accepted is not.
func sound(t *testing.T, p *page) {
	t.Helper()
	for i := range p.n {
		key := p.key(i)
		if len(key) == 0 || i > 0 && bytes.Compare(p.key(i-1), key) >= 0 {
			t.Fatalf("keys %x and %x are accepted", p.key(max(i-1, 0)), key)
		}
		if p.floor(key) != i || p.ceil(key) != i {
			t.Fatalf("key %d is found at %d and %d", i, p.floor(key), p.ceil(key))
		}
		if p.leaf {
			entry, k := p.entry(i)
			if !bytes.Equal(entry, append(bytes.Clone(key), p.value(i)...)) || k != len(key) {
				t.Fatalf("entry %d is %x", i, entry)
			}
		} else {
			_ = p.child(i)
		}
	}
}

func FuzzPage(f *testing.F) {
	for _, page := range samplePages(f) {
		f.Add(page, false)
		f.Add(page, true)
		shifted := bytes.Clone(page) // an element lies outside of the page
		native.PutUint32(shifted[pageHeader+4:], 1<<20)
		f.Add(shifted, true)
	}
	f.Add([]byte("00000000\x02\x00000000"), true) // a header says that there are elements, and there are none
	f.Fuzz(func(t *testing.T, input []byte, dirs bool) {
		input = bytes.Clone(input)
		if !dirs {
			reseal(input, 2, fuzzPage)
		}
		tx := fuzzed(input)
		for _, read := range []func(p *page) error{
			func(p *page) error { return p.read(&Tree{Tx: tx, Dirs: dirs}, 2) },
			func(p *page) error {
				inline := bytes.Clone(input)
				if len(inline) >= 8 {
					native.PutUint64(inline, 0)
				}
				if !dirs {
					reseal(inline, 0, len(inline))
				}
				return p.readInline(&Tree{Tx: tx, inline: inline, Dirs: dirs})
			},
		} {
			var p page
			var err error
			fuzztest.Frugal(t, input, func() { p = page{}; err = read(&p) })
			if err == nil {
				sound(t, &p)
			} else if !errors.Is(err, storage.ErrDamaged) || p.valid {
				t.Fatalf("%v, valid %v", err, p.valid)
			}
		}
	})
}

func FuzzFreePages(f *testing.F) {
	for _, page := range samplePages(f) {
		if native.Uint16(page[8:]) == freelistFlag {
			f.Add(page)
		}
	}
	long := make([]byte, 2*fuzzPage)
	native.PutUint64(long, 2)
	native.PutUint16(long[8:], freelistFlag)
	native.PutUint16(long[10:], 0xFFFF)
	native.PutUint32(long[12:], 1)
	native.PutUint64(long[pageHeader:], 1)
	native.PutUint64(long[pageHeader+8:], 3)
	f.Add(long)
	beyond := bytes.Clone(long) // the list is said to go beyond the file
	native.PutUint32(beyond[12:], 1<<16)
	f.Add(beyond)
	f.Fuzz(func(t *testing.T, input []byte) {
		tx := fuzzed(input)
		var err error
		fuzztest.Frugal(t, input, func() {
			err = NewUsed(tx).CheckFree(2)
		})
		if err != nil && !errors.Is(err, storage.ErrDamaged) {
			t.Fatal(err)
		}
	})
}

// TestListOfFreePagesLiesWithinItsPages: a count that needs more pages than the list has. It takes
// more pages than a fuzzed input should have.
func TestListOfFreePagesLiesWithinItsPages(t *testing.T) {
	const room = (fuzzPage - pageHeader) / 8
	input := make([]byte, (room+10)*fuzzPage)
	native.PutUint64(input, 2)
	native.PutUint16(input[8:], freelistFlag)
	for i := range uint64(room) {
		native.PutUint64(input[pageHeader+8*i:], 3+i)
	}
	for count, ok := range map[uint16]bool{room: true, room + 1: false} {
		native.PutUint16(input[10:], count)
		tx := fuzzed(input)
		used := NewUsed(tx)
		for id := 3 + uint64(count); id < tx.HighWater; id++ { // all others are in use
			used.set(id)
		}
		if err := used.CheckFree(2); (err == nil) != ok || err != nil && !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("a list of %d in a page: %v", count, err)
		}
	}
}
