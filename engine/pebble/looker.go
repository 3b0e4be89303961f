package pebble

import (
	"bytes"
	"context"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	tableblock "github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/block/blockkind"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
)

// A cacheFill divides the cache between look-ups, the memory of the index, and what else Pebble reads.
//
// Look-ups put all blocks into the cache while they have room, and then only those that were asked for
// shortly before. In a store that is much larger than the cache, random look-ups would replace all its
// blocks before they ask for one again, and leave memory that the C library does not return.
type cacheFill struct {
	cache     *pebble.Cache
	bytes     int64           // without what is for memtables
	most      int64           // bytes for the index: a third memtable takes its memory, too
	unreserve func()          // returns what the index uses to the cache
	room      atomic.Int64    // bytes that look-ups may put in until the next divide
	slots     []atomic.Uint32 // a part of a block's hash, in the slot that the rest selects
}

// slotPart is the bytes of the cache for each slot. It is about 16 blocks of a run.
const slotPart = 256 << 10

// maxSlots are those of a cache of 256 GiB.
const maxSlots = 1 << 20

func newCacheFill(cache *pebble.Cache, o *Options) *cacheFill {
	return &cacheFill{
		cache: cache, bytes: o.CacheBytes, most: max(0, o.CacheBytes-int64(o.MemTableBytes)) / 4 * 3,
		unreserve: func() {}, slots: make([]atomic.Uint32, min(max(o.CacheBytes/slotPart, 16), maxSlots)),
	}
}

// divide reserves what the index uses, up to three quarters of what a memtable leaves of the cache.
// Look-ups may fill three quarters of the rest, if nothing else does. Only one call runs at a time.
func (f *cacheFill) divide(indexed uint64) {
	reserved := min(int64(indexed), f.most)
	f.unreserve() // before Reserve, which would evict as many blocks more
	f.unreserve = f.cache.Reserve(int(reserved))
	f.room.Store((f.bytes-reserved)/4*3 - f.cache.Size())
}

// admits reports whether a block is put into the cache if it is not there.
func (f *cacheFill) admits(table, offset uint64) bool {
	const odd = 0x9e3779b97f4a7c15
	h := (table*odd ^ offset) * odd
	h = (h ^ h>>32) * odd
	slot := &f.slots[(h>>32)%uint64(len(f.slots))]
	if slot.Load() == uint32(h) { // or another block has the same hash: no harm
		return true
	}
	slot.Store(uint32(h))
	return f.room.Load() > 0
}

// A looker has what a look-up in a table needs. Lookers are reused, with their memory for blocks that are
// not in the cache.
type looker struct {
	index   colblk.IndexIter
	data    colblk.DataBlockIter
	buffers tableblock.BufferPool // for a block before and after it is decompressed
	large   bool                  // the buffers are not to be kept
}

// idleLookers is no sync.Pool: a looker that is garbage would keep memory that is not Go's.
var idleLookers = make(chan *looker, 32)

// maxIdleBlock is the maximum of the blocks for which an idle looker keeps memory.
const maxIdleBlock = 64 << 10

func newLooker() *looker {
	select {
	case l := <-idleLookers:
		return l
	default:
		l := new(looker)
		l.buffers.Init(2)
		return l
	}
}

// free makes a looker idle, or releases its memory. No look-up may use it any more.
func (l *looker) free() {
	l.index = colblk.IndexIter{} // it refers to the table's memory, which is unmapped some time
	if !l.large {
		select {
		case idleLookers <- l:
			return
		default:
		}
	}
	l.buffers.Release()
}

// read reads a block of claims.
func (l *looker) read(t *runTable, h tableblock.Handle) error {
	env, init := tableblock.NoReadEnv, t.initAdmitted
	if !t.fill.admits(t.number, h.Offset) {
		env.BufferPool, init = &l.buffers, t.initData
	}
	l.large = l.large || h.Length > maxIdleBlock // also if it cannot be read
	block, err := t.reader.BlockReader().Read(context.Background(), env, nil, h, blockkind.SSTableData, init)
	if err != nil {
		return err
	}
	l.large = l.large || len(block.BlockData()) > maxIdleBlock
	l.data.InitOnce(t.schema, pebble.DefaultComparer, nil)
	return l.data.InitHandle(pebble.DefaultComparer, block, tableblock.NoTransforms)
}

// initAdmitted is called for a block that was read from the file and will be in the cache.
func (t *runTable) initAdmitted(md *tableblock.Metadata, data []byte) error {
	t.fill.room.Add(-int64(len(md) + len(data)))
	return t.initData(md, data)
}

func (t *runTable) initData(md *tableblock.Metadata, data []byte) error {
	return colblk.InitDataBlockMetadata(t.schema, md, data)
}

// get returns the record of a key in the table, nil if it was removed. The record is a copy.
func (t *runTable) get(key []byte) (record []byte, known bool, err error) {
	l := newLooker()
	record, known, err = l.get(t, key)
	l.free() // not if damaged bytes cause a panic, which leaves buffers in use
	return record, known, err
}

func (l *looker) get(t *runTable, key []byte) (record []byte, known bool, err error) {
	part := t.part(key)
	if part == nil {
		return nil, false, nil
	}
	l.index.InitWithDecoder(pebble.DefaultComparer, &part.decoder, tableblock.NoTransforms)
	if !l.index.SeekGE(key) {
		return nil, false, nil
	}
	h, err := l.index.BlockHandleWithProperties()
	if err != nil {
		return nil, false, err
	}
	if err := l.read(t, h.Handle); err != nil {
		return nil, false, err
	}
	defer func() { _ = l.data.Close() }() // it never fails
	kv := l.data.SeekGE(key, 0)
	if kv == nil || !bytes.Equal(kv.K.UserKey, key) {
		return nil, false, nil
	}
	switch kv.K.Kind() {
	case sstable.InternalKeyKindDelete, sstable.InternalKeyKindDeleteSized:
		return nil, true, nil
	case sstable.InternalKeyKindSet, sstable.InternalKeyKindSetWithDelete:
		v := kv.InPlaceValue()
		return append(make([]byte, 0, len(v)), v...), true, nil
	}
	return nil, false, errNotARun
}
