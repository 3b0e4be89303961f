package pebble

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/hapax-dev/hapax/internal/crashfs"
)

func TestClosedStoreHasNoLogsAndNoRemovedJournal(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem()
	o := Options{FS: fsys, SmallTables: true, CacheBytes: 1 << 20}
	s, err := Open("store", o)
	if err != nil {
		t.Fatal(err)
	}
	const last = 400
	var acked atomic.Uint64
	if err := run(s, last, 50, &acked); err != nil {
		t.Fatal(err)
	}
	if err := s.TrimJournal(last + 1); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	names, err := fsys.List("store")
	if err != nil {
		t.Fatal(err)
	}
	var logs, bytes int64
	for _, name := range names {
		if strings.HasSuffix(name, ".log") {
			info, err := fsys.Stat("store/" + name)
			if err != nil {
				t.Fatal(err)
			}
			logs++
			bytes += info.Size()
		}
	}
	if logs != 1 || bytes != 0 {
		t.Errorf("%d logs of %d bytes are left", logs, bytes)
	}
	if s, err = Open("store", o); err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	tables, err := s.core.db.SSTables(pebble.WithProperties())
	if err != nil {
		t.Fatal(err)
	}
	for level, infos := range tables {
		for _, info := range infos {
			if key := info.Smallest.UserKey; key[0] == journalSpace || key[0] == packedSpace || info.Virtual {
				t.Errorf("table %s in level %d begins with key %q; virtual: %v", info.FileNum, level, key, info.Virtual)
			}
		}
	}
	if err := s.Journal(0, func(seq uint64, _ []byte) error { return fmt.Errorf("it has batch %d", seq) }); err != nil {
		t.Error(err)
	}
}

// clones copies the file system as a power cut would leave it, before each operation that changes the
// directory or makes a file durable.
type clones struct {
	fsys   *crashfs.FS
	armed  atomic.Bool
	mu     sync.Mutex // guards the fields below
	at     []string
	clones []*crashfs.FS
}

func (*clones) String() string { return "(clones)" }

func (c *clones) MaybeError(op errorfs.Op) error {
	switch op.Kind {
	case errorfs.OpCreate, errorfs.OpLink, errorfs.OpRemove, errorfs.OpRename, errorfs.OpReuseForWrite,
		errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
	default:
		return nil
	}
	if !c.armed.Load() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, kept := range []int{0, 50, 100} {
		n := uint64(len(c.at))
		c.at = append(c.at, fmt.Sprintf("operation %d, kind %d on %s, %d %% kept", n/3, op.Kind, op.Path, kept))
		c.clones = append(c.clones, c.fsys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rand.New(rand.NewPCG(n, 1))}))
	}
	return nil
}

// Whatever step of Close a power cut interrupts, all batches are there, and exactly the journal that
// was not trimmed. Some claims are in tables, some in packed batches; logs can be reused.
func TestPowerCutAtAnyStepOfCloseLosesNothing(t *testing.T) {
	t.Parallel()
	t.Run("with claims", func(t *testing.T) { cutClose(t, 20, 21, false) })
	t.Run("with state only", func(t *testing.T) { cutClose(t, 0, 0, false) }) // no table is removed
	t.Run("with tables removed before", func(t *testing.T) { cutClose(t, 20, 21, true) })
}

func cutClose(t *testing.T, n int, trimmed uint64, excise bool) {
	t.Helper()
	const last = 30
	fsys := crashfs.New()
	c := &clones{fsys: fsys}
	s, err := Open("store", Options{FS: errorfs.Wrap(fsys, c), SmallTables: true, CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var acked atomic.Uint64
	if err := run(s, last, n, &acked); err != nil {
		t.Fatal(err)
	}
	if err := s.TrimJournal(trimmed); err != nil {
		t.Fatal(err)
	}
	c.armed.Store(true)
	if excise {
		if err := errors.Join(s.compactor.excise(t.Context(), journalSpace, trimKey, 0), s.compactor.excise(t.Context(), packedSpace, packedFromKey, 0)); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, s)
	c.armed.Store(false)
	whole := model(last, n)
	t.Logf("%d power cuts", len(c.clones))
	for i, fsys := range append(c.clones, fsys.CrashClone(vfs.CrashCloneCfg{})) {
		if testing.Short() && i%3 > 0 {
			continue
		}
		at := append(c.at, "closed")[i]
		s, err := Open("store", Options{FS: fsys, SmallTables: true, CacheBytes: 1 << 20})
		if err != nil {
			t.Errorf("power cut before %s: %v", at, err)
			continue
		}
		got, err := contents(s)
		if err != nil || s.LastSeq() != last {
			t.Errorf("power cut before %s: the last batch is %d; %v", at, s.LastSeq(), err)
		}
		// the trim is durable from the flush on
		from := uint64(0)
		if _, kept := got["journal 1"]; !kept {
			from = trimmed
		}
		want := 0
		for key, value := range whole {
			var seq uint64
			if _, err := fmt.Sscanf(key, "journal %d", &seq); err == nil && seq < from {
				continue
			}
			want++
			if got[key] != value {
				t.Fatalf("power cut before %s: %q is %q, want %q", at, key, got[key], value)
			}
		}
		if len(got) != want {
			t.Errorf("power cut before %s: %d entries, want %d", at, len(got), want)
		}
		if err := s.Backup(t.Context(), "backup"); err != nil {
			t.Errorf("power cut before %s: %v", at, err)
		}
		mustClose(t, s)
		names, err := fsys.List("store")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, logSuffix+tmpSuffix) {
				t.Errorf("power cut before %s: %s is still there", at, name)
			}
		}
	}
}

// logKills copies the file system while a log is replaced, as a kill would leave it. The file systems of
// machines remove a file before they create another one of its name, which vfs.MemFS does at once.
type logKills struct {
	vfs.FS
	t      *testing.T
	armed  atomic.Bool
	copies []*vfs.MemFS
}

func (k *logKills) Create(path string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := k.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	k.kill(path)
	return k.FS.Create(path, category)
}

func (k *logKills) Rename(from, to string) error {
	k.kill(to)
	defer k.kill(to)
	return k.FS.Rename(from, to)
}

func (k *logKills) kill(path string) {
	if !k.armed.Load() || !strings.Contains(path, logSuffix) {
		return
	}
	to := vfs.NewMem()
	if _, err := vfs.Clone(k.FS, to, "store", "store"); err != nil {
		k.t.Error(err)
	}
	k.copies = append(k.copies, to)
}

// Without a log, Pebble makes an incomplete checkpoint.
func TestAKillWhileCloseEmptiesTheLogLeavesAStoreThatCanBeBackedUp(t *testing.T) {
	t.Parallel()
	k := &logKills{FS: vfs.NewMem(), t: t}
	s := mustOpen(t, k, "store", true)
	const last, n = 20, 100
	for seq := uint64(1); seq <= last; seq++ {
		mustApply(t, s, batchOf(seq, n))
	}
	mustSealAll(t, s)
	k.armed.Store(true)
	mustClose(t, s)
	k.armed.Store(false)
	if len(k.copies) == 0 {
		t.Fatal("Close replaces no log")
	}
	for i, fsys := range k.copies {
		s := mustOpen(t, fsys, "store", true)
		assertContents(t, s, model(last, n))
		if err := s.Backup(t.Context(), "backup"); err != nil {
			t.Errorf("kill %d: %v", i, err)
			continue
		}
		mustClose(t, s)
		s = mustOpen(t, fsys, "backup", true)
		assertContents(t, s, model(last, n))
		mustClose(t, s)
	}
}

// When Close has emptied the logs, the MANIFEST alone says which tables there are. If a crash comes
// before the record of the close and the MANIFEST loses its end, the attestation shows it. Without
// claims there is no seal that attests the last batch.
func TestAManifestThatLosesItsEndAfterTheLogsAreEmptiedIsDamaged(t *testing.T) {
	t.Parallel()
	const last = 30
	fsys := crashfs.New()
	c := &clones{fsys: fsys}
	s, err := Open("store", Options{FS: errorfs.Wrap(fsys, c), SmallTables: true, CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var acked atomic.Uint64
	if err := run(s, last, 0, &acked); err != nil {
		t.Fatal(err)
	}
	c.armed.Store(true)
	mustClose(t, s)
	c.armed.Store(false)
	crashes, found := 0, make(tally)
	for i, fsys := range c.clones {
		files := filesOf(t, fsys, "store")
		if _, closed := files[cleanName]; closed || newestLog(files) != "" {
			continue
		}
		crashes++
		for name, whole := range files {
			if !strings.HasPrefix(name, manifestPrefix) {
				continue
			}
			for _, lost := range []int{0, 1, 20, 200} {
				cut := max(0, len(whole)-lost)
				what := fmt.Sprintf("power cut before %s, %s cut to %d of %d bytes", c.at[i], name, cut, len(whole))
				found.add(name, outcomeOf(t, what, diskOf(t, files, name, whole[:cut]), model(last, 0)))
			}
		}
	}
	if found.report(t) != 0 {
		t.Error("missing tables went unnoticed")
	}
	if crashes == 0 || found["MANIFEST"][detected] == 0 {
		t.Errorf("%d crashes without logs, %v: the test tests nothing", crashes, found["MANIFEST"])
	}
}
