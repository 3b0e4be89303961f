package sidecar

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

const lockRetry = 10 * time.Millisecond

// Lock locks dir/name for this process, and for this handle in it, until the handle is closed or
// the process ends. It creates the file and does not remove it. While another one has the lock,
// Lock retries until the timeout has passed, and then returns storage.ErrLocked.
//
// It locks on Windows and on the systems that have flock: Linux, macOS and the BSDs. Elsewhere it
// locks nothing.
func Lock(dir, name string, timeout time.Duration) (io.Closer, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("hapax: opening the lock: %w", err)
	}
	for deadline := time.Now().Add(timeout); ; time.Sleep(lockRetry) {
		busy, err := tryLock(f)
		switch {
		case err != nil:
			_ = f.Close()
			return nil, fmt.Errorf("hapax: locking %s: %w", dir, err)
		case !busy:
			return f, nil
		case time.Now().After(deadline):
			_ = f.Close()
			return nil, fmt.Errorf("%w: %s", storage.ErrLocked, dir)
		}
	}
}
