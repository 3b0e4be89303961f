package bolt

import (
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
)

// The names of the files.
const (
	fileName     = "claims.bolt"
	newFileName  = "claims.bolt.new"    // a file being created; still empty
	copyFileName = "claims.bolt.backup" // a backup being written
	lockName     = "LOCK"
	cleanName    = "CLEAN"

	sidecarSuffix = ".sidecar"
)

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", storage.ErrDamaged, fileName, fmt.Errorf(format, args...))
}
