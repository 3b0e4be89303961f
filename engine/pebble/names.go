package pebble

import (
	"fmt"
	"strconv"
	"strings"
)

// The names of the store's files in addition to Pebble's, and the prefixes of the latter.
const (
	attestName   = "hapax-attest"
	cleanName    = "hapax-clean"
	creatingName = "hapax-creating"
	lockName     = "LOCK"
	runPrefix    = "hapax-run-"
	// of the engine's sidecars, so that no name is one of Pebble's or of the store's
	sidecarPrefix = "sidecar-"
	stageName     = "hapax-backup.tmp"
	tmpSuffix     = ".tmp"

	manifestPrefix = "MANIFEST-"
	markerPrefix   = "marker.manifest."
	logSuffix      = ".log"
)

func tableName(number uint64) string { return fmt.Sprintf("%06d.sst", number) }

func isTable(name string) bool { return strings.HasSuffix(name, ".sst") }

// isPebbleFile reports whether Pebble would consider the file one of its own, except for the lock,
// which is empty.
func isPebbleFile(name string) bool {
	for _, prefix := range []string{manifestPrefix, "OPTIONS-", "marker.", "CURRENT", "REMOTE-OBJ-CATALOG", "temporary."} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	for _, suffix := range []string{logSuffix, ".sst", ".blob", ".dbtmp"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

// fileNumber returns the number in a name such as MANIFEST-000012 or 000012.log, 0 if there is
// none.
func fileNumber(name string) uint64 {
	name = strings.TrimPrefix(strings.TrimSuffix(name, logSuffix), manifestPrefix)
	n, err := strconv.ParseUint(name, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
