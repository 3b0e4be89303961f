package pebble

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	tableblock "github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/block/blockkind"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
)

// A runTable is a table of a run, opened for look-ups beside Pebble. Its filter and its index stay
// in memory, which is taken out of the cache, so that a look-up reads one block.
type runTable struct {
	number            uint64 // of the file
	smallest, largest []byte
	lists             atomic.Int64 // that have the table; the last one closes it

	reader        *sstable.Reader
	schema        *colblk.KeySchema
	filter, index tableblock.BufferHandle
	decoder       colblk.IndexBlockDecoder
	evict         func() // removes the table's blocks from the cache
	unreserve     func() // gives the memory back to the cache
}

var errNotARun = errors.New("not a table that Hapax has written as a run")

func openRunTable(d *disk, info pebble.TableInfo, o sstable.ReaderOptions, schema string) (*runTable, error) {
	t := &runTable{number: uint64(info.FileNum), smallest: info.Smallest.UserKey, largest: info.Largest.UserKey, schema: o.KeySchemas[schema]}
	cache := &o.CacheOpts
	setNumber(&cache.FileNum, t.number)
	t.evict = func() { cache.CacheHandle.EvictFile(cache.FileNum) }
	f, err := d.Open(d.path(tableName(t.number)))
	if err != nil {
		return nil, err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if t.reader, err = sstable.NewReader(context.Background(), readable, o); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := t.load(); err != nil {
		t.close()
		return nil, err
	}
	t.evict() // the table keeps what it has loaded
	t.unreserve = cache.CacheHandle.Cache().Reserve(int(t.bytes()))
	return t, nil
}

// setNumber sets a number of a type that only Pebble can name.
func setNumber[T ~uint64](n *T, to uint64) { *n = T(to) }

func (t *runTable) load() (err error) {
	layout, err := t.reader.Layout()
	if err != nil {
		return err
	}
	if len(layout.Filter) != 1 || len(layout.Index) != 1 || layout.RangeDel.Length > 0 || !layout.Format.BlockColumnar() {
		return errNotARun
	}
	if t.filter, err = t.read(layout.Filter[0].Handle, blockkind.Filter, noMetadata); err != nil {
		return err
	}
	if t.index, err = t.read(layout.Index[0], blockkind.Index, noMetadata); err != nil {
		return err
	}
	t.decoder.Init(t.index.BlockData())
	return nil
}

func noMetadata(*tableblock.Metadata, []byte) error { return nil }

func (t *runTable) read(h tableblock.Handle, kind tableblock.Kind, init func(*tableblock.Metadata, []byte) error) (tableblock.BufferHandle, error) {
	return t.reader.BlockReader().Read(context.Background(), tableblock.NoReadEnv, nil, h, kind, init)
}

// close closes the table, which was only read.
func (t *runTable) close() {
	t.filter.Release()
	t.index.Release()
	_ = t.reader.Close()
	t.evict()
	if t.unreserve != nil {
		t.unreserve()
	}
}

// bytes returns the memory that the table uses.
func (t *runTable) bytes() uint64 {
	return uint64(len(t.filter.BlockData()) + len(t.index.BlockData()))
}

func (t *runTable) mayContain(key []byte) bool {
	return bloom.FilterPolicy(filterBitsPerKey).MayContain(pebble.TableFilter, t.filter.BlockData(), key)
}

// lookers are reused because Pebble's iterators allocate.
var lookers = sync.Pool{New: func() any { return new(looker) }}

type looker struct {
	index colblk.IndexIter
	data  colblk.DataBlockIter
}

// get returns the record of a key in the table, nil if it was removed. The record is a copy.
func (t *runTable) get(key []byte) (record []byte, known bool, err error) {
	l := lookers.Get().(*looker)
	defer lookers.Put(l)
	l.index.InitWithDecoder(pebble.DefaultComparer, &t.decoder, tableblock.NoTransforms)
	if !l.index.SeekGE(key) {
		return nil, false, nil
	}
	h, err := l.index.BlockHandleWithProperties()
	if err != nil {
		return nil, false, err
	}
	data, err := t.read(h.Handle, blockkind.SSTableData, t.initData)
	if err != nil {
		return nil, false, err
	}
	l.data.InitOnce(t.schema, pebble.DefaultComparer, nil)
	if err := l.data.InitHandle(pebble.DefaultComparer, data, tableblock.NoTransforms); err != nil {
		return nil, false, err
	}
	defer func() { _ = l.data.Close() }() // it never fails
	kv := l.data.SeekGE(key, 0)
	if kv == nil || !bytes.Equal(kv.K.UserKey, key) {
		return nil, false, nil
	}
	switch kv.K.Kind() {
	case sstable.InternalKeyKindDelete:
		return nil, true, nil
	case sstable.InternalKeyKindSet:
		v := kv.InPlaceValue()
		return append(make([]byte, 0, len(v)), v...), true, nil
	}
	return nil, false, errNotARun
}

func (t *runTable) initData(md *tableblock.Metadata, data []byte) error {
	return colblk.InitDataBlockMetadata(t.schema, md, data)
}
