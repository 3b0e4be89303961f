package pebble

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

// writeRunFile writes a run's file to fsys, in small and large pieces, and finishes it.
func writeRunFile(t *testing.T, fsys vfs.FS) (content []byte, err error) {
	t.Helper()
	f, err := fsys.Create("run", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	w := newRunFile(f)
	for _, n := range []int{1, 100, runWriteBytes - 1, 2*runWriteBytes + 5, 10_000, 7} {
		piece := bytes.Repeat([]byte{byte(n)}, n)
		content = append(content, piece...)
		err = errors.Join(err, w.Write(piece))
	}
	return content, errors.Join(err, w.Finish())
}

func TestFinishedFileOfARunSurvivesAPowerCut(t *testing.T) {
	fsys := crashfs.New()
	root, err := fsys.OpenDir("")
	if err != nil {
		t.Fatal(err)
	}
	want, err := writeRunFile(t, fsys)
	if err = errors.Join(err, root.Sync(), root.Close()); err != nil {
		t.Fatal(err)
	}
	f, err := fsys.CrashClone(vfs.CrashCloneCfg{}).Open("run")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
	}
}

func TestFileOfARunReturnsTheErrorOfEachOperation(t *testing.T) {
	for _, kind := range []errorfs.OpKind{errorfs.OpFileWrite, errorfs.OpFileSync} {
		failed := 0
		for at, seen := 1, 1; seen >= at; at++ {
			seen = 0
			fsys := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == kind {
					if seen++; seen == at {
						return errorfs.ErrInjected
					}
				}
				return nil
			}))
			_, err := writeRunFile(t, fsys)
			if errors.Is(err, errorfs.ErrInjected) != (seen >= at) {
				t.Errorf("operation %d of kind %d fails: %v", at, kind, err)
			}
			if err != nil {
				failed++
			}
		}
		if failed == 0 {
			t.Errorf("no operation of kind %d", kind)
		}
	}
}
