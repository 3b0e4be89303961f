package pages

import (
	"errors"
	"fmt"
	"io"
)

// A Tx is the state after one transaction: the root of its tree, and how to read its pages.
// They are read with pread, never through bbolt's mapping: a page that cannot be read is an error
// and not a signal.
type Tx struct {
	File      io.ReaderAt
	PageSize  int
	RootPage  uint64 // of the tree of top-level buckets
	HighWater uint64 // pages in use are below
	ID        uint64
}

func (tx *Tx) readAt(buf []byte, id uint64) error {
	_, err := tx.File.ReadAt(buf, int64(id)*int64(tx.PageSize))
	if errors.Is(err, io.EOF) {
		return Damaged("page %d lies behind the end of the file", id)
	}
	if err != nil {
		return fmt.Errorf("hapax: reading page %d of %s: %w", id, FileName, err)
	}
	return nil
}

// Root returns the tree of top-level buckets.
func (tx *Tx) Root() Tree {
	return Tree{Tx: tx, What: "root", Dirs: true, root: tx.RootPage}
}

// A Tree is one B+tree of a Tx: of entries, or of buckets. The zero value is none.
type Tree struct {
	Tx   *Tx
	What string // for messages
	Dirs bool   // of buckets
	Seed uint32 // of the entries' checksums

	root   uint64 // 0: the tree is the page inline
	inline []byte
}

// Parse reads the value of the bucket's entry, which it keeps.
func (t *Tree) Parse(value []byte) error {
	if len(value) < dirHeader || native.Uint64(value[8:]) != 0 {
		return Damaged("the entry of bucket %s is malformed", t.What)
	}
	t.root = native.Uint64(value)
	if (t.root == 0) == (len(value) == dirHeader) {
		return Damaged("the entry of bucket %s has root %d and %d bytes", t.What, t.root, len(value))
	}
	t.inline = value[dirHeader:]
	return nil
}
