package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"runtime"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// within fails the test if fn does not return in time.
func within(t testing.TB, patience time.Duration, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		stacks := make([]byte, 1<<20)
		t.Fatalf("%s hangs:\n%s", what, stacks[:runtime.Stack(stacks, true)])
	}
}

func mustOpen(t testing.TB, fsys vfs.FS, dir string, small bool) *Store {
	t.Helper()
	s, err := Open(dir, Options{FS: fsys, SmallTables: small, CacheBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustClose(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustApply(t testing.TB, s *Store, b *storage.Batch) {
	t.Helper()
	wait, err := s.Apply(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := wait(); err != nil {
		t.Fatal(err)
	}
}

const week0 = weekbucket.Week(105_000)

func claimKey(scope string, week int, i uint64) []byte {
	b := storage.Bucket{Scope: scope, Week: week0 + weekbucket.Week(week)}
	id := make([]byte, 16)
	binary.BigEndian.PutUint64(id, i*0x9E3779B97F4A7C15)
	binary.BigEndian.PutUint64(id[8:], i)
	return b.AppendKey(nil, id)
}

// batchOf returns batch seq of a deterministic workload: n claims over two scopes and weeks, and
// the state that counts them.
func batchOf(seq uint64, n int) *storage.Batch {
	b := &storage.Batch{Seq: seq, Journal: bytes.Repeat([]byte{byte(seq)}, 8*n)}
	for i := range n {
		k := seq*uint64(n) + uint64(i)
		b.Claims = append(b.Claims, storage.ClaimWrite{
			Key:    claimKey(fmt.Sprintf("scope%d", k%2), int(seq%2), k),
			Record: binary.AppendUvarint([]byte("r"), k),
		})
	}
	b.State = []storage.StateWrite{{Key: []byte("count"), Value: binary.BigEndian.AppendUint64(nil, seq)}}
	return b
}

// contents returns the contents of a store, as a map.
func contents(s *Store) (map[string]string, error) {
	m := make(map[string]string)
	err := s.Scan(context.Background(), storage.Span{}, nil, func(k, v []byte) error {
		m["claim "+string(k)] = string(v)
		return nil
	})
	if err == nil {
		err = s.ScanState(storage.Span{}, func(k, v []byte) error {
			m["state "+string(k)] = string(v)
			return nil
		})
	}
	if err == nil {
		err = s.Journal(0, func(seq uint64, v []byte) error {
			m[fmt.Sprint("journal ", seq)] = string(v)
			return nil
		})
	}
	return m, err
}

// model returns the contents after batches 1 to last of batchOf.
func model(last uint64, n int) map[string]string {
	m := make(map[string]string)
	for seq := uint64(1); seq <= last; seq++ {
		b := batchOf(seq, n)
		for _, c := range b.Claims {
			m["claim "+string(c.Key)] = string(c.Record)
		}
		for _, w := range b.State {
			m["state "+string(w.Key)] = string(w.Value)
		}
		m[fmt.Sprint("journal ", seq)] = string(b.Journal)
	}
	return m
}

func assertContents(t testing.TB, s *Store, want map[string]string) {
	t.Helper()
	got, err := contents(s)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, want) {
		t.Fatalf("the store has %d entries, want %d, and they differ", len(got), len(want))
	}
}

func TestWhatWasAppliedIsThereAfterReopening(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, nil, dir+"/store", false)
	id := s.Identity()
	if s.LastSeq() != 0 {
		t.Fatal("a new store has batches")
	}
	for seq := uint64(1); seq <= 20; seq++ {
		mustApply(t, s, batchOf(seq, 100))
	}
	assertContents(t, s, model(20, 100))
	mustClose(t, s)
	s = mustOpen(t, nil, dir+"/store", false)
	if s.LastSeq() != 20 || s.Identity() != id {
		t.Fatalf("LastSeq is %d, identity %v, want 20, %v", s.LastSeq(), s.Identity(), id)
	}
	assertContents(t, s, model(20, 100))
	rec, found, err := s.Claim(claimKey("scope0", 1, 100))
	if err != nil || !found || string(rec) != string(binary.AppendUvarint([]byte("r"), 100)) {
		t.Fatal(rec, found, err)
	}
	if _, found, err = s.Claim(claimKey("scope1", 1, 100)); found || err != nil {
		t.Fatal("a claim that was never made is found, or", err)
	}
	mustClose(t, s)
}

func TestLaterWritesOfABatchWin(t *testing.T) {
	s := mustOpen(t, vfs.NewMem(), "store", false)
	defer mustClose(t, s)
	k := claimKey("a", 0, 1)
	mustApply(t, s, &storage.Batch{Seq: 1,
		Claims: []storage.ClaimWrite{{Key: k, Record: []byte("1")}, {Key: k, Record: []byte("2")}},
		State:  []storage.StateWrite{{Key: []byte("x"), Value: []byte("1")}, {Key: []byte("x")}, {Key: []byte("y"), Value: []byte{}}},
	})
	if rec, found, err := s.Claim(k); !found || err != nil || string(rec) != "2" {
		t.Fatal(rec, found, err)
	}
	if _, found, err := s.State([]byte("x")); found || err != nil {
		t.Fatal("a removed state is found, or", err)
	}
	if v, found, err := s.State([]byte("y")); !found || err != nil || v == nil || len(v) != 0 {
		t.Fatal("an empty value is lost, or", err)
	}
	mustApply(t, s, &storage.Batch{Seq: 2, Claims: []storage.ClaimWrite{{Key: k}}})
	if _, found, err := s.Claim(k); found || err != nil {
		t.Fatal("a removed claim is found, or", err)
	}
}

func TestBatchesAreNumberedWithoutAGap(t *testing.T) {
	s := mustOpen(t, vfs.NewMem(), "store", false)
	defer mustClose(t, s)
	if _, err := s.Apply(&storage.Batch{Seq: 2}); err == nil {
		t.Fatal("batch 2 was applied first")
	}
	mustApply(t, s, &storage.Batch{Seq: 1})
}

func TestTrimmedJournalStaysTrimmedAndLastSeqStays(t *testing.T) {
	fsys := vfs.NewMem()
	s := mustOpen(t, fsys, "store", false)
	for seq := uint64(1); seq <= 10; seq++ {
		mustApply(t, s, batchOf(seq, 3))
	}
	journal := func() (seqs []uint64) {
		t.Helper()
		if err := s.Journal(2, func(seq uint64, _ []byte) error { seqs = append(seqs, seq); return nil }); err != nil {
			t.Fatal(err)
		}
		return seqs
	}
	for _, below := range []uint64{5, 3} {
		if err := s.TrimJournal(below); err != nil {
			t.Fatal(err)
		}
		if got := journal(); !slices.Equal(got, []uint64{5, 6, 7, 8, 9, 10}) {
			t.Fatal(got)
		}
	}
	if err := s.TrimJournal(11); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	s = mustOpen(t, fsys, "store", false)
	defer mustClose(t, s)
	if got := journal(); len(got) != 0 || s.LastSeq() != 10 {
		t.Fatal(got, s.LastSeq())
	}
}

func TestBucketsAreListedOnceInOrder(t *testing.T) {
	s := mustOpen(t, vfs.NewMem(), "store", true)
	defer mustClose(t, s)
	var want []storage.Bucket
	var claims []storage.ClaimWrite
	for _, scope := range []string{"a", "a\x00b", "ab", "\xff\xff"} {
		for week := range 3 {
			want = append(want, storage.Bucket{Scope: scope, Week: week0 + weekbucket.Week(week)})
			for i := range uint64(5) {
				claims = append(claims, storage.ClaimWrite{Key: claimKey(scope, week, i), Record: []byte("r")})
			}
		}
	}
	sort.Slice(want, func(i, j int) bool {
		return bytes.Compare(want[i].AppendPrefix(nil), want[j].AppendPrefix(nil)) < 0
	})
	mustApply(t, s, &storage.Batch{Seq: 1, Claims: claims})
	var got []storage.Bucket
	if err := s.Buckets(func(b storage.Bucket) error { got = append(got, b); return nil }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Fatal(got)
	}
	stop := errors.New("stop")
	if err := s.Buckets(func(storage.Bucket) error { return stop }); !errors.Is(err, stop) {
		t.Fatal(err)
	}
}

func TestScanSeesTheMomentOfStarted(t *testing.T) {
	s := mustOpen(t, vfs.NewMem(), "store", true)
	defer mustClose(t, s)
	mustApply(t, s, batchOf(1, 50))
	n := 0
	err := s.Scan(context.Background(), storage.Span{}, func() { mustApply(t, s, batchOf(2, 50)) }, func(_, _ []byte) error {
		n++
		return nil
	})
	if err != nil || n != 50 {
		t.Fatal(n, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	err = s.Scan(ctx, storage.Span{}, nil, func(_, _ []byte) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestSidecarsAreReplaced(t *testing.T) {
	s := mustOpen(t, vfs.NewMem(), "store", false)
	defer mustClose(t, s)
	if _, err := storetest.ReadSidecar(s, "filter-1"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, content := range []string{"old", "new"} {
		err := s.WriteSidecar("filter-1", func(w io.Writer) error { _, err := io.WriteString(w, content); return err })
		if err != nil {
			t.Fatal(err)
		}
		if b, err := storetest.ReadSidecar(s, "filter-1"); err != nil || string(b) != content {
			t.Fatal(b, err)
		}
	}
	mine := errors.New("the caller's")
	if err := s.WriteSidecar("filter-1", func(io.Writer) error { return mine }); !errors.Is(err, mine) {
		t.Fatal(err)
	}
	if b, err := storetest.ReadSidecar(s, "filter-1"); err != nil || string(b) != "new" {
		t.Fatal(b, err)
	}
	for _, name := range []string{"", "../x", "A", "a.b"} {
		if err := s.WriteSidecar(name, func(io.Writer) error { return nil }); err == nil {
			t.Errorf("%q is taken for a name", name)
		}
	}
}

// eventually waits for background work.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patienceInTests); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: ", what)
		}
	}
}
