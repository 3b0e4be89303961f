package bolt

import (
	"strings"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// The names of the files.
const (
	fileName     = pages.FileName
	newFileName  = "claims.bolt.new"    // a file being created; still empty
	copyFileName = "claims.bolt.backup" // a backup being written
	cleanName    = "CLEAN"

	sidecarSuffix = ".sidecar"
)

// isOurs reports whether a file belongs to the store.
func isOurs(name string) bool {
	name = strings.TrimSuffix(name, ".tmp")
	switch name {
	case fileName, newFileName, copyFileName, cleanName, sidecar.IdentityName, storedir.LockName:
		return true
	}
	return strings.HasSuffix(name, sidecarSuffix)
}
