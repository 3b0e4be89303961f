package pages

import (
	"errors"
	"fmt"
	"io"
)

// A Tx is the state after one transaction: the root of its tree, and access to its pages. Pages are
// read with pread, never through bbolt's mapping, so that a page that cannot be read causes an
// error and not a signal.
type Tx struct {
	File      io.ReaderAt
	PageSize  int
	RootPage  uint64 // root of the tree of top-level buckets
	HighWater uint64 // pages in use have lower numbers
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

// A Tree is a B+tree of a Tx, with entries or buckets. The zero value is no tree.
type Tree struct {
	Tx   *Tx
	What string // for messages
	Dirs bool   // a tree of buckets
	Seed uint32 // seed of the entries' checksums

	root   uint64 // 0 if the tree is the inline page
	inline []byte
}

// Parse parses the value of the bucket's entry. The tree keeps a reference to it.
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
