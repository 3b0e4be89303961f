package pebble

import (
	"bytes"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
)

// A runIndex has the newest runs, opened for look-ups: Pebble asks all overlapping runs one by one,
// and most of that time is spent on those that do not have the claim.
//
// An entry for a claim is in memory, or else in a newer run than all older entries. So the newest
// run that has an entry decides, if the index has all runs that are newer: it has all runs that
// were ingested since some moment, and forgets a run only together with the older ones. Then it
// does not matter where Pebble has moved the claims of a run. Claims that are removed by a Drop
// stay in their runs, so a Drop makes the index forget all runs. What no run of the index has, or
// cannot be read there, is looked up in Pebble, which also reports the damage.
type runIndex struct {
	disk    *disk
	limit   uint64 // of the memory for filters and indexes of tables
	options sstable.ReaderOptions
	schema  string

	cache *pebble.Cache // of blocks, also Pebble's
	uses  atomic.Int64  // of the cache: lists, and one until close

	mu   sync.Mutex              // held to replace the list
	list atomic.Pointer[runList] // nil after close
}

// A runList has runs, the newer first. It is immutable.
type runList struct {
	index *runIndex
	runs  []runTables
	refs  atomic.Int64 // of look-ups, and one while it is the list of the index
}

// runTables are the tables of a run, in the order of their keys.
type runTables []*runTable

// indexPart is the part of the cache that filters and indexes of runs may occupy.
const indexPart = 4

func newRunIndex(o *Options, d *disk) *runIndex {
	p := o.pebbleOptions(d)
	p.EnsureDefaults()
	x := &runIndex{disk: d, limit: min(o.PendingBytes, uint64(o.CacheBytes)/indexPart), options: p.MakeReaderOptions(), schema: p.KeySchema, cache: pebble.NewCache(p.CacheSize)}
	x.options.CacheOpts.CacheHandle = x.cache.NewHandle()
	x.uses.Store(1)
	x.replace(nil)
	return x
}

// get returns the record of a key in the newest run that has an entry for it, nil if that removes
// it. The record is a copy.
func (x *runIndex) get(key []byte) (record []byte, known bool) {
	l := x.acquire()
	if l == nil {
		return nil, false
	}
	defer l.release()
	defer func() {
		if recover() != nil { // damaged bytes cause it
			record, known = nil, false
		}
	}()
	for _, r := range l.runs {
		t := r.find(key)
		if t == nil || !t.mayContain(key) {
			continue
		}
		record, known, err := t.get(key)
		if known || err != nil {
			return record, known
		}
	}
	return nil, false
}

// find returns the table whose range has the key, nil if there is none.
func (r runTables) find(key []byte) *runTable {
	i, _ := slices.BinarySearchFunc(r, key, func(t *runTable, key []byte) int { return bytes.Compare(t.largest, key) })
	if i == len(r) || bytes.Compare(key, r[i].smallest) < 0 {
		return nil
	}
	return r[i]
}

// maxIndexed is how many tables the index keeps open.
const maxIndexed = 256

// ingested adds a run. It is called before Ingest returns: until then its claims are in memory.
func (x *runIndex) ingested(info pebble.TableIngestInfo) {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.list.Load()
	if l == nil {
		return
	}
	r, err := x.open(info)
	if err != nil {
		x.replace(nil)
		return
	}
	runs, tables, size := []runTables{r}, len(r), r.bytes()
	for _, older := range l.runs {
		tables, size = tables+len(older), size+older.bytes()
		if tables > maxIndexed || size > x.limit {
			break
		}
		runs = append(runs, older)
	}
	x.replace(runs)
	for _, t := range r {
		if _, err := x.disk.Stat(x.disk.path(tableName(t.number))); errors.Is(err, fs.ErrNotExist) {
			x.forget(t.number) // deleted before it was in the list
		}
	}
}

func (x *runIndex) open(info pebble.TableIngestInfo) (r runTables, err error) {
	if info.Err != nil {
		return nil, info.Err
	}
	for _, table := range info.Tables {
		t, err := openRunTable(x.disk, table.TableInfo, x.options, x.schema)
		if err != nil {
			for _, t := range r {
				t.close()
			}
			return nil, err
		}
		r = append(r, t)
	}
	slices.SortFunc(r, func(a, b *runTable) int { return bytes.Compare(a.smallest, b.smallest) })
	return r, nil
}

func (r runTables) bytes() (n uint64) {
	for _, t := range r {
		n += t.bytes()
	}
	return n
}

// deleted forgets a run of which Pebble has deleted a table, so that its space is free.
func (x *runIndex) deleted(info pebble.TableDeleteInfo) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forget(uint64(info.FileNum))
}

func (x *runIndex) forget(number uint64) {
	l := x.list.Load()
	if l == nil {
		return
	}
	for i, r := range l.runs {
		if slices.ContainsFunc(r, func(t *runTable) bool { return t.number == number }) {
			x.replace(l.runs[:i])
			return
		}
	}
}

// forgetAll forgets all runs.
func (x *runIndex) forgetAll() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.list.Load() != nil {
		x.replace(nil)
	}
}

// close closes all tables that no look-up uses; the others are closed after it.
func (x *runIndex) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.list.Swap(nil); l != nil {
		l.release()
		x.unuse()
	}
}

func (x *runIndex) replace(runs []runTables) {
	next := &runList{index: x, runs: runs}
	next.refs.Store(1)
	x.uses.Add(1)
	for _, r := range runs {
		for _, t := range r {
			t.lists.Add(1)
		}
	}
	if old := x.list.Swap(next); old != nil {
		old.release()
	}
}

// acquire returns the list for a look-up, which releases it, or nil if the index is closed.
func (x *runIndex) acquire() *runList {
	for {
		l := x.list.Load()
		if l == nil {
			return nil
		}
		if n := l.refs.Load(); n > 0 && l.refs.CompareAndSwap(n, n+1) {
			return l
		}
	}
}

func (l *runList) release() {
	if l.refs.Add(-1) > 0 {
		return
	}
	for _, r := range l.runs {
		for _, t := range r {
			if t.lists.Add(-1) == 0 {
				t.close()
			}
		}
	}
	l.index.unuse()
}

// unuse closes the cache with its last use. Pebble may still use it.
func (x *runIndex) unuse() {
	if x.uses.Add(-1) == 0 {
		x.options.CacheOpts.CacheHandle.Close()
		x.cache.Unref()
	}
}
