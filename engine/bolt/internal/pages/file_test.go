package pages

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bbolt "go.etcd.io/bbolt"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A testFile is a bbolt file with a bucket of sealed entries.
type testFile struct {
	t      testing.TB
	db     *bbolt.DB
	file   *os.File
	filled bool        // by the first change
	base   io.ReaderAt // what the reader of a change reads; nil = file
}

var entries = []byte("entries")

func newFile(t testing.TB) *testFile {
	t.Helper()
	path := filepath.Join(t.TempDir(), FileName)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(db.Close(), file.Close()) })
	f := &testFile{t: t, db: db, file: file}
	f.update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket(entries); return err })
	return f
}

func (f *testFile) update(fn func(tx *bbolt.Tx) error) {
	f.t.Helper()
	if err := f.db.Update(fn); err != nil {
		f.t.Fatal(err)
	}
}

// newest returns the tree of entries of the newest transaction.
func (f *testFile) newest() Tree {
	f.t.Helper()
	info, err := f.file.Stat()
	if err != nil {
		f.t.Fatal(err)
	}
	tx, _, err := Newest(f.file, info.Size())
	if err != nil {
		f.t.Fatal(err)
	}
	if f.base != nil {
		tx.File = f.base
	}
	return f.open(&tx)
}

func (f *testFile) open(tx *Tx) Tree {
	f.t.Helper()
	t := Tree{Tx: tx, What: string(entries)}
	if found, err := t.OpenIn(tx.Root(), entries); err != nil || !found {
		f.t.Fatal(found, err)
	}
	return t
}

// change puts and removes (a nil value) entries through bbolt after the check of the pages that it may
// merge, and returns the error of the check.
func (f *testFile) change(writes map[string][]byte) error {
	f.t.Helper()
	tree := f.newest()
	keys := slices.Sorted(maps.Keys(writes))
	removed := Removals{Tree: tree}
	err := tree.With(func(c *Cursor) error {
		for _, k := range keys {
			found, err := c.Seek([]byte(k))
			switch {
			case err != nil:
				return err
			case found && writes[k] == nil:
				removed.Remove(c)
			case found:
				removed.Replace(c, AppendEntry(nil, 0, []byte(k), writes[k]))
			}
		}
		return nil
	})
	if err == nil {
		err = removed.Check()
	}
	if err != nil {
		return err
	}
	f.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(entries)
		if !f.filled {
			b.FillPercent, f.filled = 0.95, true // the entries come in key order
		}
		for _, k := range keys {
			if writes[k] == nil {
				if err := b.Delete([]byte(k)); err != nil {
					return err
				}
			} else if err := b.Put([]byte(k), AppendEntry(nil, 0, []byte(k), writes[k])[len(k):]); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// used returns the pages of the entries.
func (f *testFile) used() map[uint64]bool {
	f.t.Helper()
	pages := map[uint64]bool{}
	err := f.newest().With(func(c *Cursor) error {
		c.Seen = func(id, n uint64) error {
			for ; n > 0; n-- {
				pages[id] = true
				id++
			}
			return nil
		}
		err := c.First()
		for err == nil && !c.Done() {
			err = c.Next()
		}
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return pages
}

// changeChecked is change, and reports each page that bbolt has read, since it is not in use any more,
// and the check has not.
func (f *testFile) changeChecked(what string, writes map[string][]byte) (read int) {
	f.t.Helper()
	before := f.used()
	r := &recorder{ReaderAt: f.file, pages: map[uint64]bool{}}
	f.base = r
	err := f.change(writes)
	f.base = nil
	if err != nil {
		f.t.Fatalf("%s: %v", what, err)
	}
	after := f.used()
	for id := range before {
		if after[id] {
			continue
		}
		if read++; !r.pages[id] {
			f.t.Errorf("%s: bbolt has read page %d, which was not checked before", what, id)
		}
	}
	return read
}

// A recorder notes which pages of a file are read.
type recorder struct {
	io.ReaderAt
	pages map[uint64]bool
}

func (r *recorder) ReadAt(b []byte, off int64) (int, error) {
	size := int64(os.Getpagesize())
	for at := off; at < off+int64(len(b)); at += size {
		r.pages[uint64(at/size)] = true
	}
	return r.ReaderAt.ReadAt(b, off)
}

// sample has pages of all kinds: leaves, branches, inline buckets and a list of free pages.
func sample(t testing.TB) *testFile {
	t.Helper()
	f := newFile(t)
	writes := map[string][]byte{}
	for i := range 2000 {
		writes[fmt.Sprintf("%06d", i)] = []byte("record")
	}
	f.update(func(tx *bbolt.Tx) error {
		dirs, err := tx.CreateBucket([]byte("buckets"))
		for i := range 20 {
			var b *bbolt.Bucket
			if err == nil {
				b, err = dirs.CreateBucket(fmt.Appendf(nil, "%03d", i))
			}
			if err == nil {
				err = b.Put([]byte("key"), AppendEntry(nil, 0, []byte("key"), []byte("record"))[3:])
			}
		}
		return err
	})
	for _, more := range []map[string][]byte{writes, {"000100": nil}} {
		if err := f.change(more); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func TestCursorFindsWhatBoltHasWritten(t *testing.T) {
	f := newFile(t)
	rng := rand.New(rand.NewPCG(1, 2))
	want := map[string][]byte{}
	for range 20 {
		writes := map[string][]byte{}
		for range 200 {
			k := fmt.Sprintf("%04d%s", rng.IntN(2000), strings.Repeat("k", 200))
			if writes[k] = make([]byte, rng.IntN(200)); rng.IntN(3) == 0 {
				writes[k] = nil
			}
		}
		f.changeChecked("a change", writes)
		for k, v := range writes {
			if want[k] = v; v == nil {
				delete(want, k)
			}
		}
	}
	tree := f.newest()
	for i := range 2000 {
		k := fmt.Sprintf("%04d%s", i, strings.Repeat("k", 200))
		record, found, err := tree.Get([]byte(k))
		if v, there := want[k]; err != nil || found != there || !bytes.Equal(record, v) {
			t.Fatalf("%s: found %v, %v", k, found, err)
		}
	}
	sorted := slices.Sorted(maps.Keys(want))
	from := len(sorted) / 2
	err := tree.Each([]byte(sorted[from]), func(c *Cursor) error {
		if string(c.Key()) != sorted[from] || !bytes.Equal(c.Record(), want[sorted[from]]) {
			return fmt.Errorf("%s instead of %s", c.Key(), sorted[from])
		}
		if from++; from == len(sorted) {
			return ErrStop
		}
		return nil
	})
	if err != nil || from != len(sorted) {
		t.Error(from, err)
	}
}

func TestADamagedPageIsAnError(t *testing.T) {
	f := newFile(t)
	writes := map[string][]byte{}
	for i := range 1000 {
		writes[fmt.Sprintf("%06d", i)] = []byte("record")
	}
	if err := f.change(writes); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(f.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.LastIndex(file, []byte("000500record"))
	for _, flip := range []int{at + 2, at + 8, at - at%os.Getpagesize() + 10} { // key, record, number of entries
		file[flip] ^= 1
		f.base = bytes.NewReader(file)
		if record, found, err := f.newest().Get([]byte("000500")); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("byte %d: %q, found %v, %v", flip, record, found, err)
		}
		file[flip] ^= 1
	}
	if _, found, err := f.newest().Get([]byte("000500")); !found || err != nil {
		t.Errorf("without damage: found %v, %v", found, err)
	}
}
