package runs

import (
	"bytes"
	"context"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	tableblock "github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/block/blockkind"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
)

// get returns the record of a key in the table, nil if it was removed. The record is a copy.
func (t *table) get(key []byte) (record []byte, known bool, err error) {
	l := newLooker()
	record, known, err = l.get(t, key)
	l.free() // not if damaged bytes cause a panic, which leaves buffers in use
	return record, known, err
}

// A looker has what a look-up in a table needs. Lookers are reused, with their memory for blocks that are
// not in the cache.
type looker struct {
	index   colblk.IndexIter
	data    colblk.DataBlockIter
	buffers tableblock.BufferPool // for a block before and after it is decompressed
	large   bool                  // the buffers are not to be kept
}

// get is table.get.
func (l *looker) get(t *table, key []byte) (record []byte, known bool, err error) {
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

// read reads a block of claims.
func (l *looker) read(t *table, h tableblock.Handle) error {
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
func (t *table) initAdmitted(md *tableblock.Metadata, data []byte) error {
	t.fill.room.Add(-int64(len(md) + len(data)))
	return t.initData(md, data)
}

func (t *table) initData(md *tableblock.Metadata, data []byte) error {
	return colblk.InitDataBlockMetadata(t.schema, md, data)
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
