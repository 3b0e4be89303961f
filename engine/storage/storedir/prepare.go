package storedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// prepare calls missing if there is no directory at path, and returns its absolute path.
//
// It checks filepath.Clean(path), because the file system resolves "link/" and "link/." to the
// link's target.
func prepare(path string, missing func(path string) error) (string, error) {
	if path == "" {
		return "", errors.New("hapax: the store's directory has no name")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("hapax: the store's directory: %w", err)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := missing(path); err != nil {
			return "", fmt.Errorf("hapax: the store's directory: %w", err)
		}
	case err != nil:
		return "", fmt.Errorf("hapax: checking the store's directory: %w", err)
	case info.Mode()&fs.ModeSymlink != 0:
		return "", fmt.Errorf("%w: %s is a symbolic link: give the directory itself", storage.ErrForeign, path)
	case !info.IsDir():
		return "", fmt.Errorf("%w: %s is not a directory: give an empty or new one", storage.ErrForeign, path)
	}
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("hapax: the store's directory: %w", err)
	}
	return path, nil
}

// makeDir creates a directory and its missing parents, and makes each durable before it creates the
// next.
func makeDir(dir string) error {
	parent := filepath.Dir(dir)
	if err := makeParents(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return sidecar.OS{}.SyncDir(parent)
}

func makeParents(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return nil // the next step returns the error
	}
	return makeDir(dir)
}
