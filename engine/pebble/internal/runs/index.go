// Package runs finds claims in the tables of a store: it has their filters and indexes in memory, so that
// a look-up asks the filters of all tables that may have the claim, and reads one block.
//
// It knows Pebble's tables and keys of claims, and nothing of a store. Its list of tables follows what
// Pebble reports (Ingested, Deleted, Refresh) and what is dropped.
package runs

import (
	"cmp"
	"maps"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// An Index has the tables with claims open for look-ups: Pebble asks all overlapping runs one by
// one, and most of that time is spent on those that do not have the claim.
//
// Its list has the tables of one version of Pebble that can contain claims, and all runs that were
// ingested after it. Claims reach Pebble only through runs, so the first entry in the order of the
// list is the newest one; a compaction that the list does not reflect changes nothing. The list is
// complete, and then a claim that is not in it does not exist, unless tables are omitted (coverage.go)
// because of the limits or because one could not be read. Until the first refresh, it has only the
// runs since Open. What the list does not decide is looked up in Pebble, which also reports the
// damage.
//
// A Drop leaves the claims in their tables. An entry that may be older than a drop of its bucket is
// looked up in Pebble. An entry that a range delete of a table covers comes after that table in the
// order, so a list has all range deletes that concern its entries.
//
// Its methods may be called concurrently, Refresh excepted.
type Index struct {
	files   files
	limit   uint64 // of the memory for filters and indexes of tables
	recent  int    // how many of the newest tables are worth more than others
	options sstable.ReaderOptions

	cache   *pebble.Cache // of blocks, also Pebble's
	fill    *cacheFill
	uses    atomic.Int64  // of the cache: lists, and one until close
	changed chan struct{} // takes one: the version of the list is out of date

	mu    sync.Mutex           // held to replace the list
	list  atomic.Pointer[list] // nil after close
	since int                  // runs ingested since the refresh in progress began; broken if the list lacks one
}

const broken = math.MinInt / 2

const (
	// maxIndexed is how many tables the index keeps open.
	maxIndexed = 1024

	// recentTables is how many of the newest tables the index prefers to others.
	recentTables = maxIndexed / 4
)

// Options configure an Index.
type Options struct {
	// Pebble are the options of the database whose tables the index has.
	Pebble *pebble.Options

	// Open opens the file of a table.
	Open func(number uint64) (vfs.File, error)

	// Seed is that of the filters. It must not change any more when the first table is opened.
	Seed *uint64

	// Bytes is the maximum memory for filters and indexes of tables.
	Bytes uint64

	// Recent is how many of the newest tables the index prefers to others, 0 for a quarter of those
	// that it keeps open.
	Recent int

	// CacheBytes is the part of the cache that is not for memtables.
	CacheBytes int64
}

// New returns an index without tables. Close must be called.
func New(o Options) *Index {
	p := o.Pebble
	p.EnsureDefaults()
	x := &Index{
		files: files{open: o.Open, seed: o.Seed, schema: p.KeySchemas[p.KeySchema]}, limit: o.Bytes, recent: cmp.Or(o.Recent, recentTables),
		options: p.MakeReaderOptions(), cache: pebble.NewCache(p.CacheSize), changed: make(chan struct{}, 1), since: broken,
	}
	x.fill = newCacheFill(x.cache, o.CacheBytes, int64(p.MemTableSize))
	if runtime.GOOS == "windows" {
		x.limit = 0 // there, Pebble cannot delete a table that is open
	}
	x.options.CacheOpts.CacheHandle = x.cache.NewHandle()
	x.uses.Store(1)
	x.replace(&list{})
	return x
}

// Cache returns the cache of blocks, which Pebble shares. It is valid until Close.
func (x *Index) Cache() *pebble.Cache { return x.cache }

// Changed returns a channel that has a value when a refresh is due.
func (x *Index) Changed() <-chan struct{} { return x.changed }

// change makes a refresh begin soon.
func (x *Index) change() {
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

// Deleted is called when Pebble has deleted a table: its space is free when the list lacks it.
func (x *Index) Deleted(pebble.TableDeleteInfo) { x.change() }

// Get returns the record of a key, nil if there is no claim. The record is a copy. If the index does
// not know, known is false.
func (x *Index) Get(key []byte) (record []byte, known bool) {
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
	return l.get(key, keyedHash(key, *x.files.seed))
}

// Ingested adds a run. It is called before Ingest returns: until then its claims are in memory.
func (x *Index) Ingested(info pebble.TableIngestInfo) {
	held := x.acquire()
	if held == nil {
		return
	}
	defer held.release()
	defer x.change()
	run, err := x.openRun(info)
	defer run.release()
	if err == nil && len(run) == 0 {
		return // an excision
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch l := x.list.Load(); {
	case l == nil:
	case err != nil:
		x.since = broken
		x.replace(&list{drops: l.drops})
	default:
		x.add(l, run)
	}
}

// Lose empties the list until the next refresh: claims have reached Pebble otherwise than in a run.
func (x *Index) Lose() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.list.Load(); l != nil {
		x.since = broken
		x.replace(&list{drops: l.drops})
		x.change()
	}
}

// add makes l with one more run the list. The caller holds mu.
func (x *Index) add(l *list, run group) {
	x.since++
	next := &list{coverage: l.coverage, groups: append([]group{run}, l.groups...), drops: l.drops}
	next.coverage.newest++
	if whole := x.trim(next); whole < x.since {
		x.since = broken
	}
	x.replace(next)
}

func (x *Index) openRun(info pebble.TableIngestInfo) (run group, err error) {
	if info.Err != nil {
		return nil, info.Err
	}
	for _, table := range info.Tables {
		t, err := x.open(table.TableInfo, x.limit-min(x.limit, run.size()))
		if err != nil {
			return run, err
		}
		next := run.with(t)
		if next == nil {
			t.release()
			return run, errNotARun
		}
		run = next
	}
	return run, nil
}

func (x *Index) open(info pebble.TableInfo, room uint64) (*table, error) {
	t, err := openTable(x.files, info, x.options, room)
	if err == nil {
		t.fill = x.fill
	}
	return t, err
}

// trim omits the tables that are beyond the limits. It returns how many groups at the front are whole.
func (x *Index) trim(l *list) (whole int) {
	count, size := 0, uint64(0)
	for _, g := range l.groups {
		count, size = count+len(g), size+g.size()
	}
	if count <= maxIndexed && size <= x.limit {
		return len(l.groups)
	}
	var tables []*table
	var candidates []candidate
	for i, g := range l.groups {
		for _, t := range g {
			candidates = append(candidates, newCandidate(t.smallest, t.largest, t.exclusive, i, len(tables)))
			tables = append(tables, t)
		}
	}
	byWorth(candidates, x.recent)
	n := 0
	for size = 0; n < min(count, maxIndexed); n++ {
		if size += tables[candidates[n].at].size; size > x.limit {
			break
		}
	}
	omitted := make(map[*table]bool)
	whole = len(l.groups)
	for _, c := range candidates[n:] {
		omitted[tables[c.at]] = true
		whole = min(whole, c.order)
	}
	l.coverage.omit(candidates[n:]...)
	l.coverage.newest = min(l.coverage.newest, whole)
	l.keep(func(t *table) bool { return !omitted[t] })
	return whole
}

// Dropping notes that buckets are being dropped: until Dropped is called, and forever if it is not,
// only Pebble knows of which claims.
func (x *Index) Dropping(spans []pebble.KeyRange) { x.noteDrops(spans, math.MaxUint64) }

// Dropped notes that buckets were dropped. All later entries have seq or a higher number.
func (x *Index) Dropped(spans []pebble.KeyRange, seq uint64) { x.noteDrops(spans, seq) }

func (x *Index) noteDrops(spans []pebble.KeyRange, seq uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.list.Load()
	if l == nil {
		return
	}
	drops := make(map[string]uint64, len(l.drops)+len(spans))
	maps.Copy(drops, l.drops)
	for _, span := range spans {
		drops[string(span.Start[1:])] = seq
	}
	x.replace(&list{coverage: l.coverage, groups: l.groups, drops: drops})
}

// Close closes all tables that no look-up uses; the others are closed after it.
func (x *Index) Close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.list.Swap(nil); l != nil {
		l.release()
		x.release()
	}
}

// replace makes next the list. The caller holds mu.
func (x *Index) replace(next *list) {
	next.index = x
	next.refs.Store(1)
	x.uses.Add(1)
	for _, g := range next.groups {
		g.use()
	}
	next.divide()
	if old := x.list.Swap(next); old != nil {
		old.release()
	}
	x.fill.divide(next.size())
}

// acquire returns the list for a look-up, which releases it, or nil if the index is closed.
func (x *Index) acquire() *list {
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

// release closes the cache after its last user. Pebble may still use it.
func (x *Index) release() {
	if x.uses.Add(-1) == 0 {
		x.options.CacheOpts.CacheHandle.Close()
		x.cache.Unref()
	}
}

// A Status is what an index has.
type Status struct {
	Tables   []uint64 // the numbers of their files, the newer first
	Drops    int      // of which buckets entries may be dropped
	Loaded   bool     // the tables from before Open are there, except for those that are omitted
	Complete bool     // no table is omitted either
	Bytes    uint64   // of filters and indexes
}

// Status returns what the index has at this moment.
func (x *Index) Status() (s Status) {
	l := x.acquire()
	if l == nil {
		return s
	}
	defer l.release()
	for _, g := range l.groups {
		for _, t := range g {
			s.Tables = append(s.Tables, t.number)
		}
	}
	s.Drops, s.Loaded, s.Complete, s.Bytes = len(l.drops), l.coverage.loaded, l.coverage.complete(), l.size()
	return s
}
