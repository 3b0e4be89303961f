package storedir_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// files of other programs in the store's directory, some with endings that the stores use.
var foreignFiles = []string{
	"app.log", "7.log", "app.log.tmp", "000123.log.bak", "20260101.log", "notes.sst", "MANIFEST-copy", "OPTIONS-old",
	"hapax-run-notes", "letter.txt.tmp", "x.dbtmp", "marker.pen", "CURRENT-state", "claims.bolt.old",
}

// Foreign files are left alone from Open to Close, and at the next Open.
func TestForeignFilesSurvive(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		s := k.mustOpen(t, k.dir)
		claims(t, s, 10)
		for _, name := range foreignFiles {
			if err := os.WriteFile(filepath.Join(k.dir, name), []byte("of another program: "+name), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		intact := func(when string) {
			t.Helper()
			for _, name := range foreignFiles {
				path := filepath.Join(k.dir, name)
				if b, err := os.ReadFile(path); string(b) != "of another program: "+name {
					t.Errorf("%s, %s contains %q: %v", when, name, b, err)
				}
				if info, err := os.Stat(path); err == nil && info.Mode().Perm() != 0o640 {
					t.Errorf("%s, %s has mode %v", when, name, info.Mode())
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		intact("after Close")
		const confusing = "20260101.log" // Pebble would read it
		if again, err := k.open(k.dir); k.name == "pebble" {
			if !errors.Is(err, storage.ErrForeign) || !strings.Contains(err.Error(), confusing) {
				t.Errorf("opened with %s: %v", confusing, err)
			}
			intact("after Open has refused it")
			if err := os.Rename(filepath.Join(k.dir, confusing), filepath.Join(t.TempDir(), confusing)); err != nil {
				t.Fatal(err)
			}
		} else if err != nil {
			t.Fatal(err)
		} else if err := again.Close(); err != nil {
			t.Fatal(err)
		}
		k.expect(t, k.dir, 10)
		if k.name == "pebble" {
			if err := os.WriteFile(filepath.Join(k.dir, confusing), []byte("of another program: "+confusing), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		intact("after the next Open and Close")
	})
}

// Also the creation that a crash has interrupted removes only what it has made.
func TestAnInterruptedCreationRemovesNoForeignFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	path := filepath.Join(dir, "app.log")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "hapax-creating"), []byte{0, 0, 0, 0}, 0o600),
		os.WriteFile(path, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := kinds["pebble"](dir); !errors.Is(err, storage.ErrForeign) || !strings.Contains(err.Error(), "app.log") {
		t.Errorf("opened: %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// A directory that exists may be open to others, as is the StateDirectory of systemd. Its files are
// not.
func TestFilesAreForTheirOwnerOnly(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		if err := errors.Join(os.Mkdir(k.dir, 0o755), os.Chmod(k.dir, 0o755)); err != nil {
			t.Fatal(err)
		}
		private := func(dir string) {
			t.Helper()
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
				}
			}
		}
		s := k.mustOpen(t, k.dir)
		claims(t, s, 1000)
		private(k.dir)
		backup := k.dir + "-backup"
		if err := s.Backup(context.Background(), backup); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(backup); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the backup: %v, %v", info.Mode(), err)
		}
		private(backup)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		private(k.dir)
		// a copy has made them readable
		names, err := filepath.Glob(filepath.Join(k.dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := os.Chmod(name, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s = k.mustOpen(t, k.dir)
		private(k.dir)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestBackupIntoTheStoreIsRefused(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		s := k.mustOpen(t, k.dir)
		claims(t, s, 10)
		link := k.dir + "-link"
		if err := os.Symlink(k.dir, link); err != nil {
			t.Skip(err)
		}
		for _, dir := range []string{k.dir, k.dir + "/backup", k.dir + "/a/b", link, link + "/backup"} {
			if err := s.Backup(context.Background(), dir); !errors.Is(err, storedir.ErrInside) {
				t.Errorf("backup to %s: %v", dir, err)
			}
		}
		if _, err := os.Stat(k.dir + "/backup"); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		if err := claim(s, 11); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		k.expect(t, k.dir, 11)
	})
}

// A meddler cancels a backup as soon as its directory exists, and puts a file into it.
type meddler struct {
	context.Context
	dir string
}

func (m meddler) Err() error {
	if _, err := os.Stat(m.dir); err != nil {
		return nil //nolint:nilerr // the directory is not there yet
	}
	if err := os.WriteFile(filepath.Join(m.dir, "letter.txt"), nil, 0o600); err != nil {
		return err
	}
	return context.Canceled
}

func TestAFailedBackupRemovesNothingOfOthers(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		s := k.mustOpen(t, k.dir)
		defer s.Close()
		claims(t, s, 10)
		backup := k.dir + "-backup"
		if err := s.Backup(meddler{t.Context(), backup}, backup); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if entries, err := os.ReadDir(backup); err != nil || len(entries) != 1 || entries[0].Name() != "letter.txt" {
			t.Errorf("left: %v, %v", entries, err)
		}
	})
}

// Damage to the store is none to its backup.
func TestABackupSharesNoFile(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		s := k.mustOpen(t, k.dir)
		claims(t, s, 300)
		if err := s.Close(); err != nil { // all claims are in tables
			t.Fatal(err)
		}
		s = k.mustOpen(t, k.dir)
		defer s.Close()
		backup := k.dir + "-backup"
		if err := s.Backup(context.Background(), backup); err != nil {
			t.Fatal(err)
		}
		damaged := 0
		for _, pattern := range []string{"*.sst", "claims.bolt"} {
			names, err := filepath.Glob(filepath.Join(k.dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				f, err := os.OpenFile(name, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteAt(make([]byte, 64), 0); err != nil {
					t.Fatal(err)
				}
				_ = f.Close()
				damaged++
			}
		}
		if damaged == 0 {
			t.Fatal("the store has no data")
		}
		k.expect(t, backup, 300)
	})
}

func TestASecondCloseIsHarmless(t *testing.T) {
	inBoth(t, func(t *testing.T, k *kind) {
		s := k.mustOpen(t, k.dir)
		claims(t, s, 10)
		for range 3 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		k.expect(t, k.dir, 10)
	})
}
