package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	bbolt "go.etcd.io/bbolt"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
)

// The outcomes of a flipped bit, after the store was opened and read completely.
type outcome int

const (
	refused  outcome = iota // Open returned ErrDamaged
	told                    // a read returned ErrDamaged
	harmless                // all data is unchanged
	silent                  // other data was read, without an error
)

// sampleStore fills a store with about 5,000 claims in several buckets, removes some and drops a
// bucket, and returns it open.
func sampleStore(t testing.TB, dir string) *Store {
	t.Helper()
	s := mustOpen(t, dir, Options{LockTimeout: shortLock})
	g := newClaims("v4")
	for seq := uint64(1); seq <= 12; seq++ {
		b := &storage.Batch{Seq: seq, Journal: make([]byte, 100), State: []storage.StateWrite{{Key: []byte("offset"), Value: fmt.Append(nil, seq)}}}
		for i, n := range []int{300, 60, 50, 1} {
			g.bucket = storage.Bucket{Scope: fmt.Sprintf("scope-%d", i%3), Week: 105000 + 1}
			if i == 3 {
				g.bucket.Week++
			}
			b.Claims = append(b.Claims, g.next(n)...)
		}
		b.State = append(b.State, storage.StateWrite{Key: fmt.Append(nil, "balance ", seq), Value: make([]byte, 200)})
		if seq > 6 {
			b.Claims = append(b.Claims, storage.ClaimWrite{Key: b.Claims[5].Key})
		}
		mustApply(t, s, b)
	}
	if err := s.TrimJournal(4); err != nil {
		t.Fatal(err)
	}
	if err := s.Drop([]storage.Bucket{{Scope: "scope-1", Week: 105001}}); err != nil {
		t.Fatal(err)
	}
	// The newest transaction, and with it the newest meta page, has one claim whose loss can be
	// detected.
	g.bucket = storage.Bucket{Scope: "last", Week: 105001}
	mustApply(t, s, &storage.Batch{Seq: 13, Claims: g.next(1)})
	return s
}

// digest reads all data of a store.
func digest(s *Store) (uint64, error) {
	h := fnv.New64a()
	fmt.Fprintln(h, s.Identity(), s.LastSeq())
	var keys [][]byte
	err := errors.Join(
		s.Buckets(func(b storage.Bucket) error { _, err := fmt.Fprintln(h, b); return err }),
		s.Scan(context.Background(), storage.Span{}, func() {}, func(k, r []byte) error {
			keys = append(keys, append([]byte(nil), k...))
			_, err := fmt.Fprintf(h, "%x %x\n", k, r)
			return err
		}),
		s.ScanState(storage.Span{}, func(k, v []byte) error { _, err := fmt.Fprintf(h, "%x %x\n", k, v); return err }),
		s.Journal(0, func(seq uint64, e []byte) error { _, err := fmt.Fprintf(h, "%d %x\n", seq, e); return err }),
	)
	for i := 0; i < len(keys) && err == nil; i += 97 {
		var found bool
		if _, found, err = s.Claim(keys[i]); err == nil && !found {
			fmt.Fprintln(h, "missing", i)
		}
	}
	return h.Sum64(), err
}

// observe opens dir and compares the data with want.
func observe(t testing.TB, dir string, o Options, want uint64) outcome {
	t.Helper()
	done := time.AfterFunc(5*time.Minute, func() { panic("a damaged store hangs: " + dir) })
	defer done.Stop()
	s, err := Open(dir, o)
	if err != nil {
		if !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("Open: %v", err)
		}
		return refused
	}
	got, err := digest(s)
	closed := s.Close()
	switch {
	case err != nil && !errors.Is(err, storage.ErrDamaged):
		t.Errorf("reading: %v", err)
		return told
	case err != nil:
		return told
	case closed != nil:
		t.Errorf("Close: %v", closed)
	case got != want:
		return silent
	}
	return harmless
}

// sweep flips bits of the named file, in one store for each, at the positions that next returns,
// and counts the outcomes.
func sweep(t *testing.T, dir, name string, o Options, want uint64, next func(size, at int) int) (counts [4]int, where []int) {
	t.Helper()
	work := filepath.Join(t.TempDir(), "damaged")
	copyDir(t, dir, work)
	path := filepath.Join(work, name)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	others, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	o.LockTimeout = shortLock
	for at := 0; at < len(whole); at = next(len(whole), at) {
		for _, e := range others {
			content, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if e.Name() == name {
				content = append([]byte(nil), whole...)
				content[at] ^= 1 << (at % 8)
			} else if e.Name() == fileName {
				continue // not written by a store that is only read
			}
			if err := os.WriteFile(filepath.Join(work, e.Name()), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(filepath.Join(dir, cleanName)); err != nil {
			os.Remove(filepath.Join(work, cleanName))
		}
		what := observe(t, work, o, want)
		counts[what]++
		if what == silent {
			where = append(where, at)
		}
		after, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if what == refused && (len(after) != len(whole) || after[at] != whole[at]^1<<(at%8)) {
			t.Errorf("a refused file was changed")
		}
	}
	return counts, where
}

// every visits each page's header and elements densely and the rest sparsely, with a step that
// reaches all bits.
func every(step int) func(size, at int) int {
	return func(_, at int) int { return at + step*sparse + at%3 }
}

func TestEachFlippedBitAfterACleanCloseIsFound(t *testing.T) {
	dir, want := closedStore(t)
	for name, step := range map[string]int{fileName: 5003, cleanName: 2, "HAPAX": 2} {
		counts, where := sweep(t, dir, name, Options{}, want, every(step))
		t.Logf("%s: refused %d, told %d, harmless %d, silent %d", name, counts[refused], counts[told], counts[harmless], counts[silent])
		if counts[refused] == 0 || counts[told]+counts[harmless]+counts[silent] != 0 {
			t.Errorf("%s: not every flip was refused: silent at %v", name, where)
		}
	}
}

// closedStore returns sampleStore closed.
func closedStore(t *testing.T) (dir string, want uint64) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "store")
	s := sampleStore(t, dir)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, dir, Options{})
	want, err := digest(s)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	return dir, want
}

// killedStore returns the state of sampleStore after kill -9.
func killedStore(t *testing.T) (dir string, want uint64) {
	t.Helper()
	open := filepath.Join(t.TempDir(), "store")
	s := sampleStore(t, open)
	dir = cloneOpen(t, open)
	s.Close()
	again := cloneOpen(t, dir)
	s = mustOpen(t, again, Options{})
	if s.LastSeq() != 13 {
		t.Fatalf("LastSeq after a kill is %d, want 13", s.LastSeq())
	}
	want, err := digest(s)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	return dir, want
}

func TestEachFlippedBitAfterAKillIsFoundOrHarmless(t *testing.T) {
	dir, want := killedStore(t)
	counts, where := sweep(t, dir, fileName, Options{}, want, every(4001))
	t.Logf("the file: refused %d, told %d, harmless %d, silent %d", counts[refused], counts[told], counts[harmless], counts[silent])
	if counts[silent] != 0 || counts[refused] == 0 {
		t.Errorf("silent at %v", where)
	}
	// The positions where a flip has the greatest effect: meta pages and the first page of the
	// tree.
	pageSize := os.Getpagesize()
	counts, where = sweep(t, dir, fileName, Options{}, want, func(size, at int) int {
		switch {
		case at%pageSize < 80 && at < 2*pageSize:
			return at + sparse
		case at < 2*pageSize:
			return (at/pageSize + 1) * pageSize
		}
		return size
	})
	t.Logf("the meta pages: refused %d, told %d, harmless %d, silent %d", counts[refused], counts[told], counts[harmless], counts[silent])
	if counts[silent] != 0 {
		t.Errorf("silent at %v", where)
	}
}

// believed returns a digest of everything that bbolt alone reads, without the store's checksums.
func believed(path string) (uint64, error) {
	h := fnv.New64a()
	err := guard(func() error {
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
		if err != nil {
			return err
		}
		defer db.Close()
		var read func(b *bbolt.Bucket) error
		read = func(b *bbolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				if v == nil {
					return read(b.Bucket(k))
				}
				_, err := fmt.Fprintf(h, "%x %x\n", k, v)
				return err
			})
		}
		return db.View(func(tx *bbolt.Tx) error {
			return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error { return read(b) })
		})
	})
	return h.Sum64(), err
}

// The control of the sweeps: without the store's checksums the same flips are silent, and observe
// reports silent if other data was read.
func TestWithoutChecksumsAFlippedBitIsSilent(t *testing.T) {
	dir, want := killedStore(t)
	path := filepath.Join(dir, fileName)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	intact, err := believed(path)
	if err != nil {
		t.Fatal(err)
	}
	if what := observe(t, dir, Options{LockTimeout: shortLock}, want+1); what != silent {
		t.Fatalf("a store with another digest: outcome %d", what)
	}
	// In the middle of a record: found by searching the file for a text that each record contains.
	// Flips in freed pages are harmless, and freed pages are adjacent: so the positions are tried
	// in an order that covers the whole file.
	var hits []int
	for at := 0; ; at++ {
		i := bytes.Index(content[at:], []byte("state+origin"))
		if i < 0 {
			break
		}
		at += i
		hits = append(hits, at)
	}
	order := rand.New(rand.NewPCG(1, 2)).Perm(len(hits))
	tried, silently := 0, 0
	for _, i := range order[:min(len(order), 100)] {
		flipped := append([]byte(nil), content...)
		flipped[hits[i]+3] ^= 0x10
		if err := os.WriteFile(path, flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		os.Remove(filepath.Join(dir, cleanName))
		tried++
		if got, err := believed(path); err != nil || got == intact {
			continue
		}
		silently++
		if what := observe(t, dir, Options{LockTimeout: shortLock}, want); what != refused && what != told {
			t.Errorf("bbolt reads another record at byte %d, and the store's outcome is %d", hits[i]+3, what)
		}
		if silently == 3 {
			break
		}
	}
	t.Logf("%d hits, %d tried, %d silent without checksums", len(hits), tried, silently)
	if silently == 0 {
		t.Fatal("no flip was silent without checksums, so that the sweeps prove nothing")
	}
}

// Whole pages that are missing, old, or truncated.
func TestPagesThatAreZeroOldOrCutOffAreFound(t *testing.T) {
	dir, want := killedStore(t)
	content, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	pageSize := os.Getpagesize()
	try := func(what string, changed []byte, allowed ...outcome) {
		t.Helper()
		work := filepath.Join(t.TempDir(), "damaged")
		copyDir(t, dir, work)
		if err := os.WriteFile(filepath.Join(work, fileName), changed, 0o600); err != nil {
			t.Fatal(err)
		}
		got := observe(t, work, Options{LockTimeout: shortLock}, want)
		for _, ok := range append(allowed, refused) {
			if got == ok {
				return
			}
		}
		t.Errorf("%s: outcome %d", what, got)
	}
	for id := 0; id < len(content)/pageSize; id += 1 + id/4 {
		zeroed := append([]byte(nil), content...)
		clear(zeroed[id*pageSize : (id+1)*pageSize])
		try(fmt.Sprint("page of zeros ", id), zeroed, harmless)
	}
	for _, n := range []int{0, 1, pageSize, 2 * pageSize, 5 * pageSize, len(content) / 3} {
		try(fmt.Sprint("cut to ", n), content[:n])
	}
	empty := filepath.Join(t.TempDir(), "empty")
	s := mustOpen(t, empty, Options{})
	s.Close()
	other, err := os.ReadFile(filepath.Join(empty, fileName))
	if err != nil {
		t.Fatal(err)
	}
	try("another store's file", other)
}

// Damage while the store is open, to pages that it has checked: reads and writes return it, and the
// process continues.
func TestDamageUnderAnOpenStoreIsAnError(t *testing.T) {
	counts := [4]int{}
	dir, want := closedStore(t)
	content, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	for at := 16; at < len(content); at += 9001 * sparse {
		work := filepath.Join(t.TempDir(), "work")
		copyDir(t, dir, work)
		s := mustOpen(t, work, Options{LockTimeout: shortLock})
		f, err := os.OpenFile(filepath.Join(work, fileName), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{content[at] ^ 1<<(at%8)}, int64(at)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		got, err := digest(s)
		switch {
		case errors.Is(err, storage.ErrDamaged):
			counts[told]++
		case err != nil:
			t.Errorf("byte %d: %v", at, err)
		case got == want:
			counts[harmless]++
		default:
			counts[silent]++
			t.Errorf("byte %d: silent", at)
		}
		g := newClaims("v4")
		g.rng.Uint64()
		b := &storage.Batch{Seq: 14}
		for i := range 3 {
			g.bucket = storage.Bucket{Scope: fmt.Sprintf("scope-%d", i), Week: 105001}
			b.Claims = append(b.Claims, g.next(100)...)
		}
		if _, err := s.Apply(b); err != nil && !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("byte %d: Apply: %v", at, err)
		}
		if err := s.Close(); err != nil && !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("byte %d: Close: %v", at, err)
		}
	}
	t.Logf("told %d, harmless %d, silent %d", counts[told], counts[harmless], counts[silent])
}

// A truncated file makes its mapping fault.
func TestFileCutUnderAnOpenStoreIsAnError(t *testing.T) {
	for _, keep := range []int64{0, 2, 6} {
		dir := filepath.Join(t.TempDir(), "store")
		s := sampleStore(t, dir)
		if err := os.Truncate(filepath.Join(dir, fileName), keep*int64(os.Getpagesize())); err != nil {
			t.Fatal(err)
		}
		g := newClaims("v4")
		if _, err := s.Apply(&storage.Batch{Seq: 14, Claims: g.next(100)}); !errors.Is(err, storage.ErrDamaged) || !errors.Is(err, ErrFailed) {
			t.Errorf("%d pages: Apply: %v", keep, err)
		}
		if _, err := digest(s); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%d pages: reading: %v", keep, err)
		}
		s.Close()
	}
}

// If the list of free pages contained another page, no read would detect it, but a used page would
// be allocated again.
func TestFlippedFreelistIsRefused(t *testing.T) {
	dir, want := killedStore(t)
	content, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	pageSize := os.Getpagesize()
	newest, _, err := pages.ReadMetas(bytes.NewReader(content), pageSize)
	if err != nil {
		t.Fatal(err)
	}
	from := int(newest.Freelist)*pageSize + 8
	counts, _ := sweep(t, dir, fileName, Options{}, want, func(size, at int) int {
		switch {
		case at < from:
			return from // byte 0, a meaningless page number, comes first
		case at > from+60:
			return size
		}
		return at + 1
	})
	if counts[refused] < 60 {
		t.Errorf("%d of 61 flips were refused", counts[refused])
	}
}

// What pages of bbolt have in their headers.
const (
	branchFlag = 0x01
	leafFlag   = 0x02
	metaMagic  = 0xED0CDAED
)

// overwrite changes the file of an open store in each page in which change finds something to
// change.
func overwrite(t *testing.T, dir string, change func(page []byte) bool) (changed int) {
	t.Helper()
	path := filepath.Join(dir, fileName)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := os.Getpagesize()
	for at := 0; at+size <= len(content); at += size {
		if change(content[at : at+size]) {
			changed++
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	return changed
}

// Each key is found or reported as damaged; none is reported as absent, and no wrong record is
// returned.
func TestNoDamageUnderAnOpenStoreMakesAClaimAbsent(t *testing.T) {
	for what, change := range map[string]func(page []byte) bool{
		"a bit of each branch key": func(page []byte) bool {
			if binary.NativeEndian.Uint16(page[8:]) != branchFlag || binary.NativeEndian.Uint64(page) < 2 {
				return false
			}
			for i := 1; i < int(binary.NativeEndian.Uint16(page[10:])); i++ {
				at := 16 + 16*i // of the element
				page[at+int(binary.NativeEndian.Uint32(page[at:]))+2] ^= 0x04
			}
			return true
		},
		"a bit of each record": func(page []byte) bool { return flipText(page, "state+origin", 2) },
		"a bit of some ids":    func(page []byte) bool { return flipText(page, "state+origin", -3) },
		"the number of entries": func(page []byte) bool {
			if binary.NativeEndian.Uint16(page[8:]) != leafFlag || binary.NativeEndian.Uint16(page[10:]) < 20 {
				return false
			}
			page[10] ^= 0x10
			return true
		},
	} {
		dir := filepath.Join(t.TempDir(), "store")
		s := mustOpen(t, dir, Options{LockTimeout: shortLock})
		g := newClaims("v4")
		writes := g.next(3000)
		mustApply(t, s, &storage.Batch{Seq: 1, Claims: writes})
		if overwrite(t, dir, change) == 0 {
			t.Errorf("%s: nothing to change", what)
		}
		found, damaged := 0, 0
		for _, w := range writes {
			record, ok, err := s.Claim(w.Key)
			switch {
			case errors.Is(err, storage.ErrDamaged):
				damaged++
			case err != nil || !ok || string(record) != string(w.Record):
				t.Fatalf("%s: claim %x is %q, %v, %v", what, w.Key, record, ok, err)
			default:
				found++
			}
		}
		if damaged == 0 {
			t.Errorf("%s: no read was told", what)
		}
		if err := s.Close(); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%s: Close: %v", what, err)
		}
	}
}

func flipText(page []byte, text string, at int) (changed bool) {
	for from := 16; ; from++ {
		i := bytes.Index(page[from:], []byte(text))
		if i < 0 {
			return changed
		}
		from += i
		page[from+at] ^= 0x04
		changed = true
	}
}

// bbolt without a meta page would panic while it holds its locks: the next caller must not wait for
// them.
func TestMetaPagesGoneUnderAnOpenStoreStopNobody(t *testing.T) {
	for _, gone := range []int{1, 2} {
		dir := filepath.Join(t.TempDir(), "store")
		s := sampleStore(t, dir)
		newest, _, err := pages.ReadMetas(s.core.file, s.core.pageSize)
		if err != nil {
			t.Fatal(err)
		}
		overwrite(t, dir, func(page []byte) bool {
			hit := binary.NativeEndian.Uint16(page[8:]) == 0x04 && binary.NativeEndian.Uint32(page[16:]) == metaMagic &&
				(gone == 2 || binary.NativeEndian.Uint64(page[16+48:]) == newest.ID)
			if hit {
				page[16+20] ^= 1
			}
			return hit
		})
		for range 2 {
			if _, _, err := s.State([]byte("offset")); !errors.Is(err, storage.ErrDamaged) {
				t.Errorf("%d meta pages gone: State: %v", gone, err)
			}
			if _, err := s.Apply(&storage.Batch{Seq: 14}); !errors.Is(err, storage.ErrDamaged) {
				t.Errorf("%d meta pages gone: Apply: %v", gone, err)
			}
		}
		s.Close()
		if _, err := Open(dir, Options{LockTimeout: shortLock}); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%d meta pages gone: Open: %v", gone, err)
		}
	}
}
