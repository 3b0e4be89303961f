package sidecar

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/hapax-dev/hapax/engine/storage"
)

// PrepareDir makes sure that dir is a directory of the machine's file system that is not
// world-writable. It creates a missing one, with mode 0700 and durably. A symbolic link and a
// world-writable directory are rejected with storage.ErrForeign.
//
// It checks filepath.Clean(dir), because the file system resolves "link/" and "link/." to the
// link's target: the caller must use the same path.
func PrepareDir(dir string) error {
	if dir == "" {
		return errors.New("hapax: the store's directory has no name")
	}
	dir = filepath.Clean(dir)
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := makeDir(dir); err != nil {
			return fmt.Errorf("hapax: creating the store's directory: %w", err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("hapax: looking at the store's directory: %w", err)
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%w: %s is a symbolic link: give the directory itself", storage.ErrForeign, dir)
	case !info.IsDir():
		return fmt.Errorf("%w: %s is not a directory: give an empty or new one", storage.ErrForeign, dir)
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o002 != 0:
		return fmt.Errorf("%w: %s is world-writable (mode %v): chmod 0700 it", storage.ErrForeign, dir, info.Mode().Perm())
	}
	return nil
}

// makeDir makes dir and its missing parents, each of them durable before the next.
func makeDir(dir string) error {
	parent := filepath.Dir(dir)
	if _, err := os.Stat(parent); errors.Is(err, fs.ErrNotExist) {
		if err := makeDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return OS{}.SyncDir(parent)
}
