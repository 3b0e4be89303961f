package bolt

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

const lockRetry = 10 * time.Millisecond

// lockDir makes this process, and this handle in it, the only one that has dir open, until the file
// is closed. bbolt locks its own file too, but only after it has read it: our checks come before
// that.
func lockDir(dir string, timeout time.Duration) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
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
