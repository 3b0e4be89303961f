package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// The checks of pages depend on the form of bbolt's trees, also after many removals: an undamaged
// store must pass.
func TestTreesOfManyPutsAndRemovalsPassTheCheck(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	s := mustOpen(t, filepath.Join(t.TempDir(), "store"), Options{})
	model := map[string]string{}
	bucket := storage.Bucket{Scope: "s", Week: 105000}
	for seq := uint64(1); seq <= max(60/sparse, 20); seq++ {
		b := &storage.Batch{Seq: seq}
		removing := seq%10 >= 6 // waves: the trees gain and lose levels
		for range 600 {
			id := fmt.Appendf(nil, "%0*d", 1+rng.IntN(100), rng.IntN(3000))
			if rng.IntN(40) == 0 {
				id = bytes.Repeat(id, 1+3000/len(id)) // more than a page for two
			}
			key := bucket.AppendKey(nil, id)
			if removing {
				for k := range model {
					key = []byte(k)
					break
				}
				b.Claims = append(b.Claims, storage.ClaimWrite{Key: key})
				delete(model, string(key))
				continue
			}
			record := bytes.Repeat([]byte{byte(seq)}, rng.IntN(20)+1)
			b.Claims = append(b.Claims, storage.ClaimWrite{Key: key, Record: record})
			model[string(key)] = string(record)
		}
		mustApply(t, s, b)
		if err := s.TrimJournal(seq - 1); err != nil {
			t.Fatal(err)
		}
		if err := s.Verify(t.Context(), func(problem string) { t.Errorf("batch %d: %s", seq, problem) }); err != nil || t.Failed() {
			t.Fatal(err)
		}
	}
	n := 0
	err := s.Scan(t.Context(), storage.Span{}, func() {}, func(key, record []byte) error {
		n++
		if model[string(key)] != string(record) {
			t.Errorf("%x is %x, want %x", key, record, model[string(key)])
		}
		return nil
	})
	if err != nil || n != len(model) {
		t.Errorf("%d claims, %v, want %d", n, err, len(model))
	}
	s.Close()
}

func TestApplyDoesNotWaitForAScan(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "store"), Options{})
	defer s.Close()
	g := newClaims("v4")
	mustApply(t, s, &storage.Batch{Seq: 1, Claims: g.next(100)})
	seq, n := uint64(1), 0
	err := s.Scan(t.Context(), storage.Span{}, func() {}, func(key, record []byte) error {
		if n++; n == 50 {
			// More than bbolt's first mapping of a small file: it would have to map it anew.
			for range 3 {
				seq++
				applied := make(chan struct{})
				go func() {
					mustApply(t, s, &storage.Batch{Seq: seq, Claims: g.next(5000), Journal: make([]byte, 1<<20)})
					close(applied)
				}()
				select {
				case <-applied:
				case <-time.After(time.Minute):
					panic("Apply waits for a scan")
				}
			}
		}
		return nil
	})
	if err != nil || n != 100 {
		t.Errorf("%d claims, %v; want the 100 at the start of the scan", n, err)
	}
}

func TestTornCreationIsFinished(t *testing.T) {
	made := filepath.Join(t.TempDir(), "made")
	s := mustOpen(t, made, Options{})
	s.Close()
	empty, err := os.ReadFile(filepath.Join(made, fileName))
	if err != nil {
		t.Fatal(err)
	}
	for what, files := range map[string]map[string][]byte{
		"nothing":                 {},
		"the lock":                {storedir.LockName: nil},
		"half a file":             {storedir.LockName: nil, newFileName: empty[:5000]},
		"a file":                  {storedir.LockName: nil, newFileName: empty},
		"a renamed file":          {storedir.LockName: nil, fileName: empty},
		"half an identity":        {storedir.LockName: nil, fileName: empty, "HAPAX.tmp": []byte("HAPAX")},
		"the root of a partition": {"lost+found": nil},
	} {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Open(dir, Options{})
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		mustApply(t, s, &storage.Batch{Seq: 1})
		s.Close()
		if s := mustOpen(t, dir, Options{}); s.LastSeq() != 1 {
			t.Errorf("%s: LastSeq is %d", what, s.LastSeq())
		} else {
			s.Close()
		}
	}
}

func TestWhatIsNotATornCreationIsRefusedUntouched(t *testing.T) {
	used := filepath.Join(t.TempDir(), "used")
	s := mustOpen(t, used, Options{})
	mustApply(t, s, &storage.Batch{Seq: 1})
	s.Close()
	full, err := os.ReadFile(filepath.Join(used, fileName))
	if err != nil {
		t.Fatal(err)
	}
	identity, err := os.ReadFile(filepath.Join(used, sidecar.IdentityName))
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		files map[string][]byte
		want  error
	}{
		"a store whose identity is lost":   {map[string][]byte{fileName: full}, storage.ErrDamaged},
		"a store whose file is lost":       {map[string][]byte{"HAPAX": identity}, storage.ErrDamaged},
		"an unfinished backup":             {map[string][]byte{copyFileName: full}, storage.ErrForeign},
		"another program's files":          {map[string][]byte{"letter.txt": nil}, storage.ErrForeign},
		"a file of that name, but no bolt": {map[string][]byte{fileName: make([]byte, 20_000)}, storage.ErrForeign},
		"an empty file of that name":       {map[string][]byte{fileName: nil}, storage.ErrForeign},
	} {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, content := range c.files {
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if s, err := Open(dir, Options{}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
			if err == nil {
				s.Close()
			}
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			content, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if want, ok := c.files[e.Name()]; err != nil || e.Name() != storedir.LockName && (!ok || !bytes.Equal(content, want)) {
				t.Errorf("%s: Open has left %s", what, e.Name())
			}
		}
	}
}

func TestFilesAreForTheOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, dir, Options{})
	mustApply(t, s, &storage.Batch{Seq: 1})
	s.Close()
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if info, err := d.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, %v", path, info.Mode(), err)
		}
		return nil
	})
}

func TestASecondProcessIsTurnedAway(t *testing.T) {
	if dir := os.Getenv("HAPAX_TEST_OPEN"); dir != "" {
		s, err := Open(dir, Options{LockTimeout: shortLock})
		fmt.Printf("locked=%v err=%v\n", errors.Is(err, storage.ErrLocked), err)
		if err == nil {
			s.Close()
		}
		return
	}
	dir := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, dir, Options{})
	second := func() string {
		cmd := child("-test.run=^TestASecondProcessIsTurnedAway$", "-test.v")
		cmd.Env = append(os.Environ(), "HAPAX_TEST_OPEN="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := second(); !strings.Contains(out, "locked=true") {
		t.Errorf("while the store is open: %s", out)
	}
	s.Close()
	if out := second(); !strings.Contains(out, "err=<nil>") {
		t.Errorf("after Close: %s", out)
	}
}

func TestASecondHandleIsTurnedAway(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, dir, Options{})
	start := time.Now()
	if _, err := Open(dir, Options{LockTimeout: shortLock}); !errors.Is(err, storage.ErrLocked) {
		t.Errorf("a second handle: %v", err)
	}
	if took := time.Since(start); took < shortLock || took > 2*time.Minute { // a busy machine may stall for long
		t.Errorf("it waited %v", took)
	}
	s.Close()
	mustOpen(t, dir, Options{}).Close()
}

// The file may not grow: the batch fails, nothing of it is stored, and a larger maximum is the
// remedy.
func TestAFullStoreFailsAndOpensAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, dir, Options{MaxFileBytes: 2 << 20})
	g := newClaims("v4")
	seq := uint64(0)
	var failed error
	for failed == nil && seq < 100 {
		seq++
		_, failed = s.Apply(&storage.Batch{Seq: seq, Claims: g.next(1000)})
	}
	if !errors.Is(failed, ErrFailed) {
		t.Fatalf("batch %d: %v", seq, failed)
	}
	if _, err := s.Apply(&storage.Batch{Seq: seq}); !errors.Is(err, ErrFailed) {
		t.Errorf("the next Apply: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, cleanName)); err == nil {
		t.Error("a failed store has left a record of a clean close")
	}
	s = mustOpen(t, dir, Options{})
	defer s.Close()
	if s.LastSeq() != seq-1 {
		t.Errorf("LastSeq is %d, want %d", s.LastSeq(), seq-1)
	}
	mustApply(t, s, &storage.Batch{Seq: seq, Claims: g.next(1000)})
}

func TestCloseRecordGoesBeforeTheFirstWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	record := filepath.Join(dir, cleanName)
	mustOpen(t, dir, Options{}).Close()
	before, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, dir, Options{})
	if _, _, err := s.State([]byte("x")); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if after, err := os.ReadFile(record); err != nil || !bytes.Equal(before, after) {
		t.Errorf("reading has changed the record: %v", err)
	}
	s = mustOpen(t, dir, Options{})
	mustApply(t, s, &storage.Batch{Seq: 1})
	if _, err := os.Stat(record); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record is there beside a changed file: %v", err)
	}
	s.Close()
}

// Close does not confirm data that was damaged while the store was open.
func TestDamagedStoreIsNotClosedClean(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := sampleStore(t, dir)
	path := filepath.Join(dir, fileName)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// All copies of the text, because most pages are old ones.
	for at := 0; ; at++ {
		i := bytes.Index(content[at:], []byte("state+origin"))
		if i < 0 {
			break
		}
		at += i
		f.WriteAt([]byte("S"), int64(at))
	}
	if err := s.Close(); !errors.Is(err, storage.ErrDamaged) {
		t.Errorf("Close: %v", err)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, storage.ErrDamaged) {
		t.Errorf("Open: %v", err)
	}
}

// A chdir changes the directory of the process when it is asked for its error.
type chdir struct {
	context.Context
	to string
}

func (c chdir) Err() error { return os.Chdir(c.to) }

func TestTheProcessMayChangeItsDirectory(t *testing.T) {
	home, other := t.TempDir(), t.TempDir()
	t.Chdir(home)
	s := mustOpen(t, "store", Options{LockTimeout: shortLock})
	mustApply(t, s, &storage.Batch{Seq: 1, Claims: newClaims("v4").next(10)})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, "store", Options{LockTimeout: shortLock})
	if err := s.Backup(chdir{t.Context(), other}, "backup"); err != nil {
		t.Errorf("Backup: %v", err)
	}
	if err := os.Mkdir("store", 0o700); err != nil {
		t.Fatal(err)
	}
	mustApply(t, s, &storage.Batch{Seq: 2}) // removes the record of the clean close
	if err := s.WriteSidecar("x", func(io.Writer) error { return nil }); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if entries, err := os.ReadDir("store"); err != nil || len(entries) != 0 {
		t.Errorf("the directory of that name elsewhere has %v, %v", entries, err)
	}
	for name, last := range map[string]uint64{"store": 2, "backup": 1} {
		s, err := Open(filepath.Join(home, name), Options{LockTimeout: shortLock})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if s.LastSeq() != last {
			t.Errorf("%s has %d batches, want %d", name, s.LastSeq(), last)
		}
		s.Close()
	}
}

func TestBackupIsCompact(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, dir, Options{})
	defer s.Close()
	g := newClaims("v4")
	seq := g.fill(t, s, 0, 20_000)
	dropped := g.bucket
	g.bucket.Week++
	mustApply(t, s, &storage.Batch{Seq: seq + 1, Claims: g.next(100)})
	if err := s.Drop([]storage.Bucket{dropped}); err != nil {
		t.Fatal(err)
	}
	before, err := s.Usage()
	if err != nil {
		t.Fatal(err)
	}
	if before.ReclaimableBytes < 1<<20 {
		t.Errorf("%d bytes are reclaimable after a drop of 20,000 claims", before.ReclaimableBytes)
	}
	to := filepath.Join(t.TempDir(), "backup")
	if err := s.Backup(context.Background(), to); err != nil {
		t.Fatal(err)
	}
	c := mustOpen(t, to, Options{})
	defer c.Close()
	after, err := c.Usage()
	if err != nil {
		t.Fatal(err)
	}
	if after.DiskBytes > before.DiskBytes/3 {
		t.Errorf("the backup has %d bytes, the store %d, of which %d are free", after.DiskBytes, before.DiskBytes, before.ReclaimableBytes)
	}
}

// Of two backups to one path the later one fails, and removes nothing of the other.
func TestABackupThatComesSecondLeavesTheFirst(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "store"), Options{})
	defer s.Close()
	seq := newClaims("v4").fill(t, s, 0, 100)
	to := filepath.Join(t.TempDir(), "backup")
	if err := s.Backup(context.Background(), to); err != nil {
		t.Fatal(err)
	}
	var first storage.Identity
	intact := func() {
		t.Helper()
		c := mustOpen(t, to, Options{})
		defer c.Close()
		if first == (storage.Identity{}) {
			first = c.Identity()
		}
		if c.LastSeq() != seq || c.Identity() != first {
			t.Errorf("the backup is at batch %d of %d, and is %v, not %v", c.LastSeq(), seq, c.Identity(), first)
		}
	}
	intact()
	if err := s.Backup(context.Background(), to); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	intact()
}

// The stored bytes of the small encodings.
func TestEncodingsStayWhatTheyAre(t *testing.T) {
	h := head{uuid: [16]byte{1, 2}, incarnation: 3, seq: 4, txid: 5, sums: sum{6, 7, 8}}
	got := fmt.Sprintf("%x", h.encode())
	want := "01" + "01020000000000000000000000000000" + "0000000000000003" + "0000000000000004" + "0000000000000005" +
		"0000000000000006" + "0000000000000007" + "0000000000000008"
	if got != want {
		t.Errorf("head is %s, want %s", got, want)
	}
	if back, err := parseHead(h.encode()); err != nil || back != h {
		t.Errorf("head reads back as %+v, %v", back, err)
	}
	r := clean{uuid: [16]byte{1, 2}, incarnation: 3, seq: 4, txid: 5, size: 6, hash: 7}
	got = fmt.Sprintf("%x", r.encode())
	want = "484150415843 4c4e 00000001 01020000000000000000000000000000 0000000000000003 0000000000000004 0000000000000005 0000000000000006 0000000000000007"
	want = strings.ReplaceAll(want, " ", "")
	if !strings.HasPrefix(got, want) || len(got) != len(want)+8 {
		t.Errorf("CLEAN is %s, want %s", got, want)
	}
	if back, err := parseClean(r.encode()); err != nil || back != r {
		t.Errorf("CLEAN reads back as %+v, %v", back, err)
	}
	entry := pages.AppendEntry(nil, pages.Seed(claimSpace, []byte("prefix")), []byte("key"), []byte("record"))
	if got, want := fmt.Sprintf("%x", entry), goldenEntry; got != want {
		t.Errorf("an entry is %s, want %s", got, want)
	}
	var s sum
	s.add(entry)
	if got, want := fmt.Sprintf("%x", s.encode()), goldenSum; got != want {
		t.Errorf("its sum is %s, want %s", got, want)
	}
}

const (
	goldenEntry = "6b65797265636f726497dbacf3"
	goldenSum   = "000000000000000141b816ef7b3a9b7c000000000000001d"
)

// Errors that only the sums show: each page is sound, but an entry is missing.
func TestAnEntryThatIsGoneIsMissed(t *testing.T) {
	for what, remove := range map[string]func(w *writeTx, claim []byte) error{
		"a state": func(w *writeTx, _ []byte) error { return w.tx.Bucket(stateDir).Delete(stateKey([]byte("balance 3"))) },
		"a bucket": func(w *writeTx, claim []byte) error {
			_, tail, err := storage.SplitKey(claim)
			return errors.Join(err, w.tx.Bucket(claimsDir).DeleteBucket(claim[:len(claim)-len(tail)]))
		},
		"a claim": func(w *writeTx, claim []byte) error {
			_, tail, err := storage.SplitKey(claim)
			return errors.Join(err, w.tx.Bucket(claimsDir).Bucket(claim[:len(claim)-len(tail)]).Delete(tail))
		},
	} {
		dir := filepath.Join(t.TempDir(), "store")
		s := sampleStore(t, dir)
		g := newClaims("v4")
		g.bucket = storage.Bucket{Scope: "another", Week: 105001}
		writes := g.next(100)
		mustApply(t, s, &storage.Batch{Seq: 14, Claims: writes})
		if err := s.writer.update(func(w *writeTx) error { return remove(w, writes[7].Key) }); err != nil {
			t.Fatal(err)
		}
		problems := 0
		if err := s.Verify(t.Context(), func(string) { problems++ }); err != nil || problems == 0 {
			t.Errorf("%s: Verify reports %d problems, %v", what, problems, err)
		}
		if _, err := Open(cloneOpen(t, dir), Options{}); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%s: Open after a kill: %v", what, err)
		}
		if what != "a state" {
			if err := s.Drop([]storage.Bucket{g.bucket}); !errors.Is(err, storage.ErrDamaged) {
				t.Errorf("%s: Drop: %v", what, err)
			}
		}
		s.Close()
	}
}

// bbolt syncs unless an option forbids it, and its calls of the file cannot be observed: so this
// checks the options, and checks that a second reader of the file sees each batch after Apply. It
// does not show that the batch would survive a power failure: the second reader sees unsynced data
// too.
func TestTheStoreSyncs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, dir, Options{LockTimeout: shortLock})
	defer s.Close()
	if s.core.db.NoSync || s.core.db.NoGrowSync || s.core.db.NoFreelistSync {
		t.Errorf("NoSync %v, NoGrowSync %v, NoFreelistSync %v", s.core.db.NoSync, s.core.db.NoGrowSync, s.core.db.NoFreelistSync)
	}
	g := newClaims("v4")
	for seq := uint64(1); seq <= 3; seq++ {
		claims := g.next(100)
		mustApply(t, s, &storage.Batch{Seq: seq, Claims: claims})
		other := mustOpen(t, cloneOpen(t, dir), Options{})
		if other.LastSeq() != seq {
			t.Errorf("the file is at batch %d after batch %d", other.LastSeq(), seq)
		}
		for _, w := range claims {
			if record, found, err := other.Claim(w.Key); err != nil || !found || string(record) != string(w.Record) {
				t.Fatalf("batch %d: claim %x is %q, %v, %v in the file", seq, w.Key, record, found, err)
			}
		}
		other.Close()
	}
}
