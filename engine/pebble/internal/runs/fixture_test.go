package runs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

const (
	testCache    = 256 << 20
	testMemTable = 96 << 20
	testFormat   = pebble.FormatValueSeparation
	week0        = weekbucket.Week(2900)
)

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 2)) }

// claimKey is the key of a claim in a table.
func claimKey(scope string, week int, i uint64) []byte {
	id := binary.BigEndian.AppendUint64(nil, i*0x9E3779B97F4A7C15)
	b := storage.Bucket{Scope: scope, Week: week0 + weekbucket.Week(week)}
	return b.AppendKey([]byte{Space}, binary.BigEndian.AppendUint64(id, i))
}

// claimKeys returns n of them, in order.
func claimKeys(n int) (keys [][]byte) {
	for i := range uint64(n) {
		keys = append(keys, claimKey("orders", 0, i))
	}
	slices.SortFunc(keys, bytes.Compare)
	return keys
}

// A fixture is a database without a store.
type fixture struct {
	t     testing.TB
	db    *pebble.DB
	fs    vfs.FS
	seed  uint64
	runs  int
	cache int64 // of an index
}

func newFixture(t testing.TB) *fixture {
	f := &fixture{t: t, fs: vfs.NewMem(), seed: 7, cache: testCache}
	o := f.options()
	o.CacheSize, o.MemTableSize = 1<<20, 1<<20
	db, err := pebble.Open("db", o)
	if err != nil {
		t.Fatal(err)
	}
	f.db = db
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) options() *pebble.Options {
	o := &pebble.Options{
		FS: f.fs, FormatMajorVersion: testFormat, DisableAutomaticCompactions: true, Logger: quiet{f.t},
		CacheSize: f.cache + 2*testMemTable, MemTableSize: testMemTable,
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = Filters{Seed: &f.seed, Bits: 10}
	}
	return o
}

// index returns an index of the database, without tables.
func (f *fixture) index() *Index {
	x := New(Options{
		Pebble: f.options(), Seed: &f.seed, Bytes: testCache, CacheBytes: f.cache,
		Open: func(number uint64) (vfs.File, error) { return f.fs.Open(fmt.Sprintf("db/%06d.sst", number)) },
	})
	f.t.Cleanup(x.Close)
	return x
}

// loaded returns an index that has the tables.
func (f *fixture) loaded() *Index {
	x := f.index()
	if err := x.Refresh(f.db, nil); err != nil {
		f.t.Fatal(err)
	}
	return x
}

// ingest makes a run of claims, which are in order, in tables of that many.
func (f *fixture) ingest(keys [][]byte, each int) {
	f.t.Helper()
	o := f.options()
	o.EnsureDefaults()
	var paths []string
	f.runs++
	for part := range slices.Chunk(keys, each) {
		path := fmt.Sprintf("run%d-%d", f.runs, len(paths))
		file, err := f.fs.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			f.t.Fatal(err)
		}
		w := sstable.NewWriter(objstorageprovider.NewFileWritable(file), o.MakeWriterOptions(0, testFormat.MaxTableFormat()))
		for _, key := range part {
			if err := w.Set(key, fmt.Appendf(nil, "record of run %d", f.runs)); err != nil {
				f.t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			f.t.Fatal(err)
		}
		paths = append(paths, path)
	}
	if err := f.db.Ingest(f.t.Context(), paths); err != nil {
		f.t.Fatal(err)
	}
}

// version returns the tables of the database.
func (f *fixture) version() [][]pebble.SSTableInfo {
	f.t.Helper()
	version, err := f.db.SSTables(pebble.WithKeyRangeFilter([]byte{Space}, []byte{Space + 1}))
	if err != nil {
		f.t.Fatal(err)
	}
	return version
}

// quiet fails the test where Pebble would end the process.
type quiet struct{ t testing.TB }

func (quiet) Infof(string, ...any)                {}
func (quiet) Errorf(string, ...any)               {}
func (q quiet) Fatalf(format string, args ...any) { q.t.Errorf(format, args...) }
