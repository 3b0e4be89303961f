package pebble

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

// filesOf reads a directory into memory.
func filesOf(t testing.TB, fsys vfs.FS, dir string) map[string][]byte {
	t.Helper()
	names, err := fsys.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for _, name := range names {
		if files[name], err = readFile(fsys, fsys.PathJoin(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// diskOf is the reverse of filesOf, with one file changed.
func diskOf(t testing.TB, files map[string][]byte, name string, content []byte) *vfs.MemFS {
	t.Helper()
	fsys := vfs.NewMem()
	if err := fsys.MkdirAll("store", 0o700); err != nil {
		t.Fatal(err)
	}
	for n, b := range files {
		if n == name {
			b = content
		}
		rewrite(t, fsys, "store/"+n, b)
	}
	return fsys
}

// An outcome is the result of a damaged byte.
type outcome int

const (
	harmless outcome = iota // everything is there
	detected                // storage.ErrDamaged at open or at a read
	silent                  // something else is there, and no error was returned
)

// outcomeOf opens a damaged store and reads all of it.
func outcomeOf(t *testing.T, what string, fsys vfs.FS, want map[string]string) (o outcome) {
	t.Helper()
	within(t, patienceInTests, what, func() {
		s, err := Open("store", Options{FS: fsys, SmallTables: true, CacheBytes: 1 << 20})
		if err != nil {
			o = refused(t, what, err)
			return
		}
		defer s.Close() // it may return the error that it has met
		got, err := contents(s)
		switch {
		case err != nil:
			o = refused(t, what, err)
		case !maps.Equal(got, want):
			o = silent
		}
	})
	return o
}

type outcomeFunc func(t *testing.T, what string, fsys vfs.FS, want map[string]string) outcome

// outcomeOfPebble opens a damaged store with Pebble alone, unchecked, and reads all of it.
func outcomeOfPebble(t *testing.T, what string, fsys vfs.FS, want map[string]string) (o outcome) {
	t.Helper()
	within(t, patienceInTests, what, func() {
		opts := Options{FS: fsys, SmallTables: true, CacheBytes: 1 << 20}
		if err := opts.setDefaults(); err != nil {
			t.Error(err)
		}
		s := newStore(opts, newFailStopFS(fsys, "store"))
		db, err := s.core.openPebble(nil)
		if err != nil {
			o = refused(t, what, err)
			return
		}
		s.core.db = db
		defer s.core.fault.write(db.Close)
		got, err := contents(s)
		switch {
		case err != nil:
			o = refused(t, what, err)
		case !maps.Equal(got, want):
			o = silent
		}
	})
	return o
}

func refused(t *testing.T, what string, err error) outcome {
	t.Helper()
	for _, typed := range []error{storage.ErrDamaged, storage.ErrForeign, storage.ErrNewerFormat} {
		if errors.Is(err, typed) {
			return detected
		}
	}
	t.Errorf("%s: damage gives an untyped error: %v", what, err)
	return detected
}

// A tally counts outcomes by kind of file.
type tally map[string]*[3]int

func (c tally) add(name string, o outcome) {
	kind := name
	switch {
	case isTable(name):
		kind = "table"
	case strings.HasSuffix(name, ".log"):
		kind = "log"
	case strings.ContainsRune(name, '-') && isPebbleFile(name):
		kind = name[:strings.IndexByte(name, '-')]
	}
	if c[kind] == nil {
		c[kind] = new([3]int)
	}
	c[kind][o]++
}

func (c tally) report(t *testing.T) (silents int) {
	t.Helper()
	for _, kind := range slices.Sorted(maps.Keys(c)) {
		n := c[kind]
		t.Logf("%-20s %5d detected, %5d harmless, %d silent", kind, n[detected], n[harmless], n[silent])
		silents += n[silent]
	}
	return silents
}

// damage flips bytes in every file and returns the outcome of each flip. Small files are flipped at
// all offsets up to budget, the others at budget evenly spaced ones.
func damage(t *testing.T, files map[string][]byte, budget int, open outcomeFunc, want map[string]string, only func(string) bool) tally {
	t.Helper()
	c := make(tally)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if only != nil && !only(name) {
			continue
		}
		whole := files[name]
		step := max(1, len(whole)/budget)
		for off := 0; off < len(whole); off += step {
			bad := slices.Clone(whole)
			bad[off] ^= 1 << (off % 8)
			what := fmt.Sprintf("%s, byte %d of %d", name, off, len(whole))
			o := open(t, what, diskOf(t, files, name, bad), want)
			if o == silent {
				t.Logf("%s: silent", what)
			}
			c.add(name, o)
		}
	}
	return c
}

// cleanStore returns a cleanly closed store with many tables.
func cleanStore(t *testing.T, last uint64, n int) (files map[string][]byte, want map[string]string) {
	t.Helper()
	fsys := vfs.NewMem()
	s := mustOpen(t, fsys, "store", true)
	for seq := uint64(1); seq <= last; seq++ {
		mustApply(t, s, batchOf(seq, n))
	}
	mustClose(t, s)
	return filesOf(t, fsys, "store"), model(last, n)
}

func tables(files map[string][]byte) (n int) {
	for name := range files {
		if isTable(name) {
			n++
		}
	}
	return n
}

// samples returns how many bytes of a file to flip: as many as the test requests, or all if
// HAPAX_SWEEP is set to all.
func samples(all int) int {
	if os.Getenv("HAPAX_SWEEP") == "all" {
		return all
	}
	return max(10, all/10)
}

func TestFiftyThousandClaimsFillTwentySmallTables(t *testing.T) {
	if os.Getenv("HAPAX_SWEEP") != "all" {
		t.Skip("TestAfterACleanCloseNoDamageIsSilent counts them for fewer claims; set HAPAX_SWEEP=all")
	}
	files, _ := cleanStore(t, 50, 1000)
	if n := tables(files); n < 20 {
		t.Fatalf("%d tables", n)
	}
}

func TestAfterACleanCloseNoDamageIsSilent(t *testing.T) {
	t.Parallel()
	files, want := cleanStore(t, 12, 500)
	budget := samples(40)
	if testing.Short() {
		budget = 4
	}
	if n := tables(files); n < 20 {
		t.Fatalf("%d tables", n)
	}
	if damage(t, files, budget, outcomeOf, want, nil).report(t) != 0 {
		t.Fatal("damage went unnoticed")
	}
}

// The end of a table is where Pebble begins to read it: every byte of it.
func TestNoByteOfATablesFooterAndIndexIsSilent(t *testing.T) {
	t.Parallel()
	files, want := cleanStore(t, 3, 100)
	for name := range files {
		if !isTable(name) {
			continue
		}
		whole := files[name]
		c := make(tally)
		for off := int64(max(0, len(whole)-800)); off < int64(len(whole)); off += stepInTests(7) {
			for _, bits := range []byte{0x01, 0x02, 0x80, 0xFF}[:samples(40)/10] {
				bad := slices.Clone(whole)
				bad[off] ^= bits
				what := fmt.Sprintf("%s, byte %d of %d, bits %x", name, off, len(whole), bits)
				c.add(name, outcomeOf(t, what, diskOf(t, files, name, bad), want))
			}
		}
		if c.report(t) != 0 {
			t.Fatal("damage went unnoticed")
		}
		return
	}
}

// The control: without the record of the clean close, some flips are not detected.
func TestWithoutTheChecksDamageIsSeenToBeSilent(t *testing.T) {
	t.Parallel()
	files, want := cleanStore(t, 12, 500)
	manifest := func(name string) bool { return strings.HasPrefix(name, manifestPrefix) }
	if damage(t, files, 60, outcomeOfPebble, want, manifest).report(t) == 0 {
		t.Fatal("no flip of the MANIFEST got through without our checks: the damage test tests nothing")
	}
}

func TestMissingShortenedAndForeignFilesAreDamage(t *testing.T) {
	t.Parallel()
	files, want := cleanStore(t, 12, 500)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		// without the record the store counts as killed, and is undamaged
		if name == lockName || name == cleanName {
			continue
		}
		less := maps.Clone(files)
		delete(less, name)
		if o := outcomeOf(t, "without "+name, diskOf(t, less, "", nil), want); o != detected {
			t.Errorf("without %s: outcome %d", name, o)
		}
		if n := len(files[name]); n > 0 {
			for _, cut := range []int{0, n / 2, n - 1} {
				what := fmt.Sprintf("%s cut to %d of %d bytes", name, cut, n)
				if o := outcomeOf(t, what, diskOf(t, files, name, files[name][:cut]), want); o != detected {
					t.Errorf("%s: outcome %d", what, o)
				}
			}
		}
	}
	more := maps.Clone(files)
	more["marker.manifest.999999.MANIFEST-000001"] = nil
	if o := outcomeOf(t, "another marker", diskOf(t, more, "", nil), want); o != detected {
		t.Errorf("another marker: outcome %d", o)
	}
}

func TestDamageChangesNoByte(t *testing.T) {
	files, _ := cleanStore(t, 12, 500)
	for name := range files {
		if !strings.HasPrefix(name, manifestPrefix) && name != cleanName {
			continue
		}
		bad := slices.Clone(files[name])
		bad[len(bad)/2] ^= 4
		fsys := diskOf(t, files, name, bad)
		before := fingerprint(t, fsys, "store")
		if s, err := Open("store", Options{FS: fsys}); !errors.Is(err, storage.ErrDamaged) {
			t.Fatal(s, err)
		}
		if fingerprint(t, fsys, "store") != before {
			t.Errorf("finding %s damaged changed the directory", name)
		}
	}
}

// Open reads some tables, which the record of a clean close does not check.
func TestATableThatOpenFindsDamagedChangesNoByte(t *testing.T) {
	files, _ := cleanStore(t, 3, 100)
	refused := 0
	for name := range files {
		if !isTable(name) {
			continue
		}
		bad := slices.Clone(files[name])
		bad[10] ^= 4
		fsys := diskOf(t, files, name, bad)
		before := fingerprint(t, fsys, "store")
		s, err := Open("store", Options{FS: fsys, SmallTables: true})
		if err == nil {
			_ = s.Close() // it may return the error that it has met
			continue
		}
		refused++
		if !errors.Is(err, storage.ErrDamaged) {
			t.Error(err)
		}
		if fingerprint(t, fsys, "store") != before {
			t.Errorf("finding %s damaged changed the directory", name)
		}
	}
	if refused == 0 {
		t.Fatal("Open reads no table")
	}
}

func TestVerifyNamesADamagedTable(t *testing.T) {
	files, _ := cleanStore(t, 12, 500)
	opened := 0
	for name := range files {
		if !isTable(name) {
			continue
		}
		bad := slices.Clone(files[name])
		bad[len(bad)/3] ^= 4
		s, err := Open("store", Options{FS: diskOf(t, files, name, bad), SmallTables: true})
		if errors.Is(err, storage.ErrDamaged) {
			continue // Open reads this one
		}
		if err != nil {
			t.Fatal(err)
		}
		opened++
		var problems []string
		if err := s.Verify(context.Background(), func(p string) { problems = append(problems, p) }); err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.HasPrefix(p, name) }) {
			t.Fatalf("%s is damaged, Verify reports %q", name, problems)
		}
		_ = s.Close()
	}
	if opened == 0 {
		t.Error("no store with a damaged table was opened")
	}
}

// killedStore returns the state after a kill of a busy store, or of an idle one: all written data,
// and nothing else.
func killedStore(t *testing.T, last uint64, n int, idle bool) (files map[string][]byte, want map[string]string) {
	t.Helper()
	fsys := crashfs.New()
	s := mustOpen(t, fsys, "store", true)
	for seq := uint64(1); seq <= last; seq++ {
		mustApply(t, s, batchOf(seq, n))
	}
	kill := func() {
		files = filesOf(t, fsys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng(1)}), "store")
	}
	kill()
	if idle {
		eventually(t, "all batches are attested", func() bool {
			kill()
			a, err := decodeAttestation(files[attestName])
			return err == nil && a.seq == last
		})
	}
	mustClose(t, s)
	return files, model(last, n)
}

// All that an idle store has acknowledged is attested, in its log and in the attestation file.
func TestDamageAfterAKillOfAnIdleStoreIsNotSilent(t *testing.T) {
	t.Parallel()
	files, want := killedStore(t, 12, 500, true)
	budget := samples(60)
	if damage(t, files, budget, outcomeOf, want, func(name string) bool { return !isTable(name) }).report(t) != 0 {
		t.Fatal("damage went unnoticed")
	}
}

// After a kill under load, nothing attests the last part: damage there looks like a torn end. Only
// the last batches are affected, and the remaining ones are a prefix. The package's documentation
// has the figure that this logs.
func TestAfterAKillUnderLoadOnlyTheLastBatchesCanBeLostToDamage(t *testing.T) {
	const last, n = 60, 20
	files, want := killedStore(t, last, n, false)
	var log string
	for name := range files {
		if strings.HasSuffix(name, ".log") {
			log = max(log, name)
		}
	}
	whole := files[log]
	scan := scanLog(whole, uint32(fileNumber(log)))
	end := int(scan.valid)
	step := max(1, end/samples(200))
	silents, first, least := 0, end, uint64(last)
	for off := 0; off < end; off += step {
		bad := slices.Clone(whole)
		bad[off] ^= 1 << (off % 8)
		fsys := diskOf(t, files, log, bad)
		s, err := Open("store", Options{FS: fsys, SmallTables: true, CacheBytes: 1 << 20})
		if err != nil {
			refused(t, fmt.Sprint("byte ", off), err)
			continue
		}
		if s.LastSeq() < last {
			silents, first, least = silents+1, min(first, off), min(least, s.LastSeq())
		}
		if _, err := prefixOf(s, n); err != nil {
			t.Errorf("byte %d: %v", off, err)
		}
		mustClose(t, s)
	}
	t.Logf("the log has %d bytes; flips of its last %d can take the batches after %d of %d away", end, end-first, least, len(want)/(n+1))
	if least < last-2 {
		t.Errorf("a flip took batches %d to %d away", least+1, last)
	}
}

// newestLog returns the name of the newest log that is not empty.
func newestLog(files map[string][]byte) (log string) {
	for name, b := range files {
		if strings.HasSuffix(name, logSuffix) && len(b) > 0 && (log == "" || fileNumber(name) > fileNumber(log)) {
			log = name
		}
	}
	return log
}

// Where a log ends too early, nothing in it shows what is missing. The attestation does. All batches
// are in the log alone.
func TestBatchesThatAreMissingInTheLogOfAnIdleStoreAreNoticed(t *testing.T) {
	t.Parallel()
	files, want := killedStore(t, 12, 20, true)
	log := newestLog(files)
	only := func(name string) bool { return name == log }
	c := damage(t, files, samples(600), outcomeOf, want, only)
	whole := files[log]
	end := int(scanLog(whole, uint32(fileNumber(log))).valid)
	for n := range 12 {
		cut := end * n / 12
		what := fmt.Sprintf("%s cut to %d of %d bytes", log, cut, len(whole))
		c.add(log, outcomeOf(t, what, diskOf(t, files, log, whole[:cut]), want))
	}
	less := maps.Clone(files)
	delete(less, log)
	c.add(log, outcomeOf(t, "without "+log, diskOf(t, less, "", nil), want))
	if c.report(t) != 0 {
		t.Error("missing batches went unnoticed")
	}
	if n := c["log"][detected]; n < 12 {
		t.Errorf("%d losses were detected: the batches are not in the log alone", n)
	}
}

// Whatever chunk of a log is damaged, the intact ones after it show that it was durable, and which
// batches were.
func TestIntactChunksShowWhatWasDurable(t *testing.T) {
	files, _ := killedStore(t, 60, 20, false)
	log := newestLog(files)
	whole, number := files[log], uint32(fileNumber(log))
	type at struct {
		chunk
		begin   int
		durable uint64
	}
	var chunks []at
	end := 0
	walk(whole, number, true, func(c chunk) {
		for { // the rest of a block is padding
			if _, ok := parseChunk(block(whole, end), number, true); ok {
				break
			}
			end++
		}
		next := at{chunk: c, begin: end}
		if c.first {
			next.durable, _ = parseDurability(c.payload)
		}
		chunks = append(chunks, next)
		end += c.size
	})
	proofs := 0
	for i, bad := range chunks {
		damaged := slices.Clone(whole)
		damaged[bad.begin+bad.size-1] ^= 1
		var proof bool
		var durable uint64
		for j, c := range chunks {
			if j != i {
				durable = max(durable, c.durable)
				proof = proof || j > i && c.synced > uint64(bad.begin)
			}
		}
		scan := scanLog(damaged, number)
		if scan.valid != int64(bad.begin) || scan.proof != proof || scan.newest != durable {
			t.Errorf("chunk %d of %d, at byte %d: the log is valid up to %d, durable: %v, up to batch %d; want %v, %d",
				i, len(chunks), bad.begin, scan.valid, scan.proof, scan.newest, proof, durable)
		}
		if proof {
			proofs++
		}
	}
	if proofs == 0 {
		t.Error("no chunk shows that another one was durable: the test tests nothing")
	}
}

// The MANIFEST is judged on its own: by what was attested of it, and by what is intact after a place
// that cannot be read.
func TestAManifestThatLacksWhatWasDurableIsDamaged(t *testing.T) {
	files, _ := killedStore(t, 12, 500, true)
	a, err := decodeAttestation(files[attestName])
	if err != nil {
		t.Fatal(err)
	}
	name := a.manifest.name
	whole := files[name]
	check := func(content []byte, attested position) error {
		return checkManifest(newFailStopFS(diskOf(t, files, name, content), "store"), attested)
	}
	older := position{fmt.Sprint(manifestPrefix, "000001"), 1 << 20}
	newer := position{fmt.Sprintf("%s%06d", manifestPrefix, fileNumber(name)+1), 0}
	longer := position{name, uint64(len(whole)) + 1}
	for what, c := range map[string]struct {
		attested position
		damaged  bool
	}{
		"as attested":              {a.manifest, false},
		"nothing was attested":     {position{}, false},
		"an older one was current": {older, false},
		"a newer one was current":  {newer, true},
		"it was longer":            {longer, true},
	} {
		if err := check(whole, c.attested); errors.Is(err, storage.ErrDamaged) != c.damaged {
			t.Errorf("%s: %v", what, err)
		}
	}
	var ends []int
	end := 0
	walk(whole, 0, false, func(c chunk) { end += c.size; ends = append(ends, end) })
	if len(ends) < 3 {
		t.Fatalf("the MANIFEST has %d chunks", len(ends))
	}
	for i, end := range ends {
		bad := slices.Clone(whole)
		bad[end-1] ^= 1
		// the last record may be torn; it was not attested
		if err := check(bad, position{}); errors.Is(err, storage.ErrDamaged) != (i < len(ends)-1) {
			t.Errorf("chunk %d of %d is damaged: %v", i+1, len(ends), err)
		}
	}
}
