package runs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sort"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	tableblock "github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/block/blockkind"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/internal/offheap"
)

// A table is a table with claims, opened for look-ups in addition to Pebble's own use. Its
// filter and its index stay in memory, so that a look-up reads one block (looker).
type table struct {
	number            uint64 // of the file
	smallest, largest []byte
	exclusive         bool   // largest is not in the table
	seq               uint64 // no entry of the table is older
	drops             map[string]uint64
	users             atomic.Int64 // lists, and who opened it; the last one closes it

	seed   uint64 // of the store
	filter filter
	index  []indexPart
	size   uint64 // of filter and index in memory

	reader *sstable.Reader
	schema *colblk.KeySchema
	fill   *cacheFill
	free   []func() // memory of filter and index
	evict  func()   // removes the table's blocks from the cache
}

// files are where tables are opened from.
type files struct {
	open   func(number uint64) (vfs.File, error)
	seed   *uint64
	schema *colblk.KeySchema
}

// An indexPart is a block of a table's index: a large table has several.
type indexPart struct {
	last    []byte // not less than the keys of the part
	decoder colblk.IndexBlockDecoder
}

var (
	errNotARun = errors.New("not a table with claims as Hapax has them written")
	errNoRoom  = errors.New("the index has no room for the table")
)

// openTable opens a table for one user, if at most room bytes of its file are to be kept in
// memory.
func openTable(from files, info pebble.TableInfo, o sstable.ReaderOptions, room uint64) (opened *table, err error) {
	t := &table{
		number: uint64(info.FileNum), smallest: info.Smallest.UserKey, largest: info.Largest.UserKey,
		exclusive: info.Largest.IsExclusiveSentinel(), seq: uint64(info.SmallestSeqNum), schema: from.schema, seed: *from.seed,
	}
	t.users.Store(1)
	cache := &o.CacheOpts
	setNumber(&cache.FileNum, t.number)
	t.evict = func() { cache.CacheHandle.EvictFile(cache.FileNum) }
	f, err := from.open(t.number)
	if err != nil {
		return nil, err
	}
	defer func() {
		if r := recover(); r != nil { // damaged bytes cause it
			err = fmt.Errorf("pebble panicked: %v", r)
		}
		switch {
		case err == nil:
			t.evict() // the table keeps what it has loaded
		case t.reader == nil:
			err = errors.Join(err, f.Close())
		default:
			t.release()
		}
	}()
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return nil, err
	}
	reader, err := sstable.NewReader(context.Background(), readable, o)
	if err != nil {
		return nil, err
	}
	t.reader = reader
	return t, t.load(room)
}

// setNumber sets a number of a type that only Pebble can name.
func setNumber[T ~uint64](n *T, to uint64) { *n = T(to) }

// filterBlock is what Pebble puts before the name of a filter.
const filterBlock = "fullfilter."

func (t *table) load(room uint64) error {
	layout, err := t.reader.Layout()
	if err != nil {
		return err
	}
	if len(layout.Filter) > 1 || !layout.Format.BlockColumnar() {
		return errNotARun
	}
	var size uint64
	for _, f := range layout.Filter {
		size += f.Length
	}
	for _, i := range layout.Index {
		size += i.Length
	}
	if size > room {
		return errNoRoom
	}
	if len(layout.Filter) > 0 {
		data, err := t.keep(layout.Filter[0].Handle, blockkind.Filter)
		if err != nil {
			return err
		}
		ok := layout.Filter[0].Name == filterBlock+keyedFilterName
		if ok {
			t.filter, ok = newKeyedFilter(data, t.seed)
		}
		if !ok {
			return errNotARun
		}
	}
	return errors.Join(t.loadIndex(layout), t.loadDrops())
}

func (t *table) loadIndex(layout *sstable.Layout) error {
	t.index = make([]indexPart, len(layout.Index))
	for i, h := range layout.Index {
		data, err := t.keep(h, blockkind.Index)
		if err != nil {
			return err
		}
		t.index[i].decoder.Init(data)
	}
	if layout.TopIndex.Length == 0 {
		return nil
	}
	top, err := t.read(layout.TopIndex, blockkind.Index, noMetadata)
	if err != nil {
		return err
	}
	defer top.Release()
	var decoder colblk.IndexBlockDecoder
	decoder.Init(top.BlockData())
	var it colblk.IndexIter
	it.InitWithDecoder(pebble.DefaultComparer, &decoder, tableblock.NoTransforms)
	n := 0
	for ok := it.First(); ok && n < len(t.index); ok = it.Next() {
		t.index[n].last = bytes.Clone(it.Separator())
		n++
	}
	if n < len(t.index) {
		return errNotARun
	}
	return nil
}

// loadDrops reads the range deletes of the claim space, each of which is a part of a bucket.
func (t *table) loadDrops() (err error) {
	it, err := t.reader.NewRawRangeDelIter(context.Background(), sstable.NoFragmentTransforms, sstable.NoReadEnv)
	if err != nil || it == nil {
		return err
	}
	defer it.Close()
	t.drops = make(map[string]uint64)
	for span, err := it.First(); span != nil || err != nil; span, err = it.Next() {
		if err != nil {
			return err
		}
		if span.Start[0] > Space {
			return nil
		}
		prefix, _ := memtable.SplitPrefix(span.Start[1:])
		if span.Start[0] < Space || bytes.Compare(span.End, spanOf(prefix).End) > 0 {
			return errNotARun
		}
		for _, key := range span.Keys {
			t.drops[string(prefix)] = max(t.drops[string(prefix)], uint64(key.SeqNum()))
		}
	}
	return nil
}

func noMetadata(*tableblock.Metadata, []byte) error { return nil }

func (t *table) read(h tableblock.Handle, kind tableblock.Kind, init func(*tableblock.Metadata, []byte) error) (tableblock.BufferHandle, error) {
	return t.reader.BlockReader().Read(context.Background(), tableblock.NoReadEnv, nil, h, kind, init)
}

// keep reads a block and keeps it in memory.
func (t *table) keep(h tableblock.Handle, kind tableblock.Kind) ([]byte, error) {
	b, err := t.read(h, kind, noMetadata)
	if err != nil {
		return nil, err
	}
	defer b.Release()
	data := b.BlockData()
	kept, free := offheap.Make[byte](t, uint64(len(data)))
	copy(kept, data)
	t.free = append(t.free, free)
	t.size += uint64(len(data))
	return kept, nil
}

// release closes the table after its last user.
func (t *table) release() {
	if t.users.Add(-1) > 0 {
		return
	}
	for _, free := range t.free {
		free()
	}
	_ = t.reader.Close()
	t.evict()
}

// endsBefore reports whether all keys of the table are less than key.
func (t *table) endsBefore(key []byte) bool {
	c := bytes.Compare(t.largest, key)
	return c < 0 || c == 0 && t.exclusive
}

// covers reports whether a key is in the table's range.
func (t *table) covers(key []byte) bool {
	return bytes.Compare(t.smallest, key) <= 0 && !t.endsBefore(key)
}

// part returns the part of the index in which a key is searched, nil if no part can have it.
func (t *table) part(key []byte) *indexPart {
	if len(t.index) == 1 {
		return &t.index[0]
	}
	i := sort.Search(len(t.index), func(i int) bool { return bytes.Compare(key, t.index[i].last) <= 0 })
	if i == len(t.index) {
		return nil
	}
	return &t.index[i]
}
