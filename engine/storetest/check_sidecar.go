package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"syscall"

	"github.com/hapax-dev/hapax/engine/storage"
)

func (e *subject) writeSidecar(name string, content []byte) {
	e.Helper()
	if err := e.s.WriteSidecar(name, writerOf(content)); err != nil {
		e.Fatalf("WriteSidecar(%q): %v", name, err)
	}
}

// writerOf writes in two pieces, and checks that the writer does not change them, as io.Writer
// requires.
func writerOf(content []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		own := bytes.Clone(content)
		half := len(own) / 2
		_, err := w.Write(own[:half])
		_, err2 := w.Write(own[half:])
		if !bytes.Equal(own, content) {
			return errors.New("the sidecar's writer has changed the bytes it was given")
		}
		return errors.Join(err, err2)
	}
}

func (e *subject) expectSidecar(when, name string, want []byte) {
	e.Helper()
	if got, err := ReadSidecar(e.s, name); err != nil || !bytes.Equal(got, want) {
		e.Errorf("%s: sidecar %q is %q, %v; want %q", when, name, short(got), err, short(want))
	}
}

func sidecarReplaced(e *env) {
	for i, content := range [][]byte{[]byte("first"), []byte("a longer second one"), []byte("3"), {}, noise(1, 1<<20), []byte("last")} {
		e.writeSidecar("filter", content)
		e.expectSidecar(fmt.Sprint("written ", i+1), "filter", content)
		got, _ := ReadSidecar(e.s, "filter")
		scribble(got)
		e.expectSidecar("after its bytes were scribbled over", "filter", content)
		e.reopen()
		e.expectSidecar("opened again", "filter", content)
	}
	mine := errors.New("the reader's")
	if err := e.s.ReadSidecar("filter", func(io.Reader, int64) error { return mine }); !errors.Is(err, mine) {
		e.Errorf("ReadSidecar returns %v where its reader fails", err)
	}
	e.expectSidecar("after its reader has failed", "filter", []byte("last"))
	e.writeSidecar("filter-1", []byte("another"))
	e.writeSidecar("filte", []byte("yet another"))
	e.expectSidecar("beside others", "filter", []byte("last"))
	e.expectSidecar("beside others", "filter-1", []byte("another"))
}

func sidecarSurvives(e *env) {
	e.needCrash()
	for i := range 4 {
		content := noise(uint64(i), 10_000*i)
		e.writeSidecar("filter", content)
		e.crash(50 * (i % 3))
		e.expectSidecar("after a crash", "filter", content)
	}
}

func sidecarHalfWritten(e *env) {
	e.needCrash()
	old := []byte("the old one")
	for _, unsynced := range []int{0, 50, 100} {
		e.writeSidecar("filter", old)
		var clones []string
		err := e.s.WriteSidecar("filter", func(w io.Writer) error {
			_, err := w.Write(noise(1, 100_000))
			clones = append(clones, e.h.CrashClone(e.test, e.s, e.dir, unsynced))
			return err
		})
		if err != nil {
			e.Fatalf("WriteSidecar: %v", err)
		}
		e.expectSidecar("written", "filter", noise(1, 100_000))
		for _, dir := range clones {
			e.onOther(dir, func(s storage.Store) {
				if got, err := ReadSidecar(s, "filter"); err != nil || !bytes.Equal(got, old) {
					e.Errorf("after a crash while it was being replaced, the sidecar is %q, %v", short(got), err)
				}
				if err := s.WriteSidecar("filter", writerOf([]byte("next"))); err != nil {
					e.Errorf("WriteSidecar after a crash within one: %v", err)
				}
			})
		}
	}
}

// onOther calls f with a store in another directory.
func (e *subject) onOther(dir string, f func(s storage.Store)) {
	e.Helper()
	s, err := e.h.Open(e.test, dir)
	if err != nil {
		e.Fatalf("opening %s: %v", dir, err)
	}
	f(s)
	if err := s.Close(); err != nil {
		e.Errorf("closing %s: %v", dir, err)
	}
}

func sidecarThatFails(e *env) {
	fail := func(w io.Writer) error {
		if _, err := w.Write(noise(1, 50_000)); err != nil {
			return err
		}
		return errStop
	}
	if err := e.s.WriteSidecar("filter", fail); !errors.Is(err, errStop) {
		e.Errorf("WriteSidecar returned %v, but its write function said %v", err, errStop)
	}
	if got, err := ReadSidecar(e.s, "filter"); !errors.Is(err, fs.ErrNotExist) {
		e.Errorf("a sidecar whose first write failed is %q, %v", short(got), err)
	}
	e.writeSidecar("filter", []byte("old"))
	if err := e.s.WriteSidecar("filter", fail); !errors.Is(err, errStop) {
		e.Errorf("WriteSidecar returned %v, but its write function said %v", err, errStop)
	}
	e.expectSidecar("after a write function's error", "filter", []byte("old"))
	// The caller canceled the write; the store has not failed.
	e.claims(claim(bucket("a", week), "x", "1"))
	e.writeSidecar("filter", []byte("new"))
	e.reopen()
	e.expectSidecar("opened again", "filter", []byte("new"))
	e.check("opened again")
}

func sidecarWithoutRoom(e *env) {
	if e.h.NoRoom == nil {
		e.test.Skip("the harness cannot remove the space for a sidecar")
	}
	e.writeSidecar("filter", []byte("old"))
	room := e.h.NoRoom(e.test, e.s)
	for range 3 {
		if err := e.s.WriteSidecar("filter", writerOf(noise(1, 100_000))); !errors.Is(err, syscall.ENOSPC) {
			e.Errorf("WriteSidecar without space for it: %v", err)
		}
		e.expectSidecar("without space for a new one", "filter", []byte("old"))
		e.claims(claim(bucket("a", week), "x", "1"))
	}
	room()
	e.claims(claim(bucket("a", week), "y", "2"))
	e.check("with room again")
	e.writeSidecar("filter", []byte("new"))
	e.reopen()
	e.expectSidecar("opened again", "filter", []byte("new"))
	e.check("opened again")
}

func sidecarsWrittenAtOnce(e *env) {
	const writers, rounds = 3, 8
	e.writeSidecar("shared", bytes.Repeat([]byte{'-'}, 1000))
	whole := func(b []byte) error {
		if len(b)%1000 != 0 || len(b) == 0 || strings.Trim(string(b), string(b[:1])) != "" {
			return fmt.Errorf("the sidecar is a mixture: %q", short(b))
		}
		return nil
	}
	problems := make(chan error, 10*writers)
	var wg sync.WaitGroup
	s := e.s
	for i := range writers {
		wg.Go(func() {
			for round := range rounds {
				content := bytes.Repeat([]byte{byte('a' + i)}, 1000*(1+(i+round)%writers))
				own := fmt.Sprint("own-", i)
				err := errors.Join(s.WriteSidecar("shared", writerOf(content)), s.WriteSidecar(own, writerOf(content)))
				got, err2 := ReadSidecar(s, own)
				if err = errors.Join(err, err2); err == nil && !bytes.Equal(got, content) {
					err = fmt.Errorf("%s is %q", own, short(got))
				}
				if err == nil {
					if got, err = ReadSidecar(s, "shared"); err == nil {
						err = whole(got)
					}
				}
				if err != nil {
					problems <- err
					return
				}
			}
		})
	}
	e.within(e.h.patience, "writing sidecars concurrently", func() error { wg.Wait(); return nil })
	select {
	case err := <-problems:
		e.Fatalf("%v", err)
	default:
	}
	e.reopen()
	got, err := ReadSidecar(e.s, "shared")
	if err == nil {
		err = whole(got)
	}
	if err != nil {
		e.Errorf("opened again: %v", err)
	}
}

func sidecarNames(e *env) {
	e.claims(numbered(bucket("a", week), 0, 10)...)
	e.state(set("x", "y"))
	names := []string{"hapax", "lock", "current", "manifest", "options", "data", "db", "store", "clean", "identity", "wal", "tmp", "a", "0", "-", "a-0", "hapax-tmp", "000001"}
	for _, name := range names {
		e.writeSidecar(name, []byte("sidecar "+name))
	}
	e.check("beside sidecars")
	e.settle()
	e.reopen()
	for _, name := range names {
		e.expectSidecar("opened again", name, []byte("sidecar "+name))
	}
	e.check("opened again")
	if e.h.CrashClone != nil {
		e.crash(50)
		for _, name := range names {
			e.expectSidecar("after a crash", name, []byte("sidecar "+name))
		}
		e.check("after a crash")
	}
}

func sidecarAbsent(e *env) {
	expect := func() {
		e.Helper()
		if b, err := ReadSidecar(e.s, "absent"); !errors.Is(err, fs.ErrNotExist) {
			e.Errorf("ReadSidecar of an absent one is %q, %v", b, err)
		}
	}
	expect()
	e.writeSidecar("absent-minded", []byte("x"))
	expect()
	e.reopen()
	expect()
}
