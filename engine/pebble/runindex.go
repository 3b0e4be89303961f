package pebble

import (
	"maps"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
)

// A runIndex has the tables with claims open for look-ups: Pebble asks all overlapping runs one by
// one, and most of that time is spent on those that do not have the claim.
//
// Its list has the tables of one version of Pebble that can contain claims, and all runs that were
// ingested after it. Claims reach Pebble only through runs, so the first entry in the order of the
// list is the newest one; a compaction that the list does not reflect changes nothing. The list is
// complete, and then a claim that is not in it does not exist, unless tables are omitted (runomit.go)
// because of the limits or because one could not be read. Until the first refresh, it has only the
// runs since Open. What the list does not decide is looked up in Pebble, which also reports the
// damage.
//
// A Drop leaves the claims in their tables. An entry that may be older than a drop of its bucket is
// looked up in Pebble. An entry that a range delete of a table covers comes after that table in the
// order, so a list has all range deletes that concern its entries.
type runIndex struct {
	disk    *disk
	limit   uint64 // of the memory for filters and indexes of tables
	recent  int    // how many of the newest tables are worth more than others
	options sstable.ReaderOptions
	schema  string

	cache   *pebble.Cache // of blocks, also Pebble's
	fill    *cacheFill
	uses    atomic.Int64  // of the cache: lists, and one until close
	changed chan struct{} // takes one: the version of the list is out of date

	mu    sync.Mutex              // held to replace the list
	list  atomic.Pointer[runList] // nil after close
	since int                     // runs ingested since the refresh in progress began; broken if the list lacks one
}

const broken = math.MinInt / 2

const (
	// indexMemory is the memory for filters and indexes in relation to Options.PendingBytes.
	indexMemory = 6

	// maxIndexed is how many tables the index keeps open.
	maxIndexed = 1024

	// recentTables is how many of the newest tables the index prefers to others.
	recentTables = maxIndexed / 4
)

func newRunIndex(o *Options, d *disk) *runIndex {
	p := o.pebbleOptions(d)
	p.EnsureDefaults()
	x := &runIndex{
		disk: d, limit: indexMemory * o.PendingBytes, recent: recentTables, options: p.MakeReaderOptions(), schema: p.KeySchema,
		cache: pebble.NewCache(p.CacheSize), changed: make(chan struct{}, 1), since: broken,
	}
	x.fill = newCacheFill(x.cache, o)
	if runtime.GOOS == "windows" {
		x.limit = 0 // there, Pebble cannot delete a table that is open
	}
	x.options.CacheOpts.CacheHandle = x.cache.NewHandle()
	x.uses.Store(1)
	x.replace(&runList{})
	return x
}

// change makes a refresh begin soon.
func (x *runIndex) change() {
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

// deleted is called when Pebble has deleted a table: its space is free when the list lacks it.
func (x *runIndex) deleted(pebble.TableDeleteInfo) { x.change() }

// get returns the record of a key, nil if there is no claim. The record is a copy. If the index does
// not know, known is false.
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
	return l.get(key, keyedHash(key, x.disk.seed))
}

// ingested adds a run. It is called before Ingest returns: until then its claims are in memory.
func (x *runIndex) ingested(info pebble.TableIngestInfo) {
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
		x.replace(&runList{drops: l.drops})
	default:
		x.add(l, run)
	}
}

// lose empties the list until the next refresh: claims have reached Pebble otherwise than in a run.
func (x *runIndex) lose() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.list.Load(); l != nil {
		x.since = broken
		x.replace(&runList{drops: l.drops})
		x.change()
	}
}

// add makes l with one more run the list. The caller holds mu.
func (x *runIndex) add(l *runList, run tableGroup) {
	x.since++
	next := &runList{coverage: l.coverage, groups: append([]tableGroup{run}, l.groups...), drops: l.drops}
	next.coverage.newest++
	if whole := x.trim(next); whole < x.since {
		x.since = broken
	}
	x.replace(next)
}

func (x *runIndex) openRun(info pebble.TableIngestInfo) (run tableGroup, err error) {
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

func (x *runIndex) open(info pebble.TableInfo, room uint64) (*runTable, error) {
	t, err := openRunTable(x.disk, info, x.options, x.schema, room)
	if err == nil {
		t.fill = x.fill
	}
	return t, err
}

// trim omits the tables that are beyond the limits. It returns how many groups at the front are whole.
func (x *runIndex) trim(l *runList) (whole int) {
	count, size := 0, uint64(0)
	for _, g := range l.groups {
		count, size = count+len(g), size+g.size()
	}
	if count <= maxIndexed && size <= x.limit {
		return len(l.groups)
	}
	var tables []*runTable
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
	omitted := make(map[*runTable]bool)
	whole = len(l.groups)
	for _, c := range candidates[n:] {
		omitted[tables[c.at]] = true
		whole = min(whole, c.order)
	}
	l.coverage.omit(candidates[n:]...)
	l.coverage.newest = min(l.coverage.newest, whole)
	l.keep(func(t *runTable) bool { return !omitted[t] })
	return whole
}

// dropping notes that buckets are being dropped: until dropped is called, and forever if it is not,
// only Pebble knows of which claims.
func (x *runIndex) dropping(spans []pebble.KeyRange) { x.noteDrops(spans, math.MaxUint64) }

// dropped notes that buckets were dropped. All later entries have seq or a higher number.
func (x *runIndex) dropped(spans []pebble.KeyRange, seq uint64) { x.noteDrops(spans, seq) }

func (x *runIndex) noteDrops(spans []pebble.KeyRange, seq uint64) {
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
	x.replace(&runList{coverage: l.coverage, groups: l.groups, drops: drops})
}

// close closes all tables that no look-up uses; the others are closed after it.
func (x *runIndex) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.list.Swap(nil); l != nil {
		l.release()
		x.release()
	}
}

// replace makes next the list. The caller holds mu.
func (x *runIndex) replace(next *runList) {
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

// release closes the cache after its last user. Pebble may still use it.
func (x *runIndex) release() {
	if x.uses.Add(-1) == 0 {
		x.options.CacheOpts.CacheHandle.Close()
		x.cache.Unref()
	}
}
