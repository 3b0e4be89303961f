package pebble

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// The names of the store's files in addition to Pebble's, and the prefixes of the latter.
const (
	attestName   = "hapax-attest"
	cleanName    = "hapax-clean"
	creatingName = "hapax-creating"
	lockName     = storedir.LockName
	reserveName  = "hapax-reserve"
	runPrefix    = "hapax-run-"
	// prefix of the engine's sidecars, which distinguishes them from other files
	sidecarPrefix = "sidecar-"
	stageName     = "hapax-backup.tmp"
	tmpSuffix     = ".tmp"

	manifestPrefix = "MANIFEST-"
	markerPrefix   = "marker.manifest."
	logSuffix      = ".log"
)

func tableName(number uint64) string { return fmt.Sprintf("%06d.sst", number) }

func isTable(name string) bool { return strings.HasSuffix(name, ".sst") }

// pebbleFile matches the names of Pebble's files, except for the lock. Pebble itself would also
// take 7.log for a log.
var pebbleFile = regexp.MustCompile(`^(\d{6,}\.(log|sst|blob)|(MANIFEST|OPTIONS|REMOTE-OBJ-CATALOG)-\d{6,}|` +
	`CURRENT|(CURRENT|temporary)\.\d{6,}\.dbtmp|marker\.[a-z-]+\.\d{6,}\.[0-9A-Za-z-]+)$`)

// isPebbleFile reports whether a name is that of a file of Pebble.
func isPebbleFile(name string) bool { return pebbleFile.MatchString(name) }

func isLog(name string) bool { return strings.HasSuffix(name, logSuffix) && isPebbleFile(name) }

// isOurs reports whether a name is that of a file of the store or Pebble.
func isOurs(name string) bool {
	if isRun(name) {
		return true
	}
	name = strings.TrimSuffix(name, tmpSuffix)
	switch name {
	case attestName, cleanName, creatingName, lockName, reserveName, sidecar.IdentityName:
		return true
	}
	return isPebbleFile(name) || strings.HasPrefix(name, sidecarPrefix)
}

// isRun reports whether a name is that of a run's table that is being written (runWriter).
func isRun(name string) bool { return runFileName.MatchString(name) }

var runFileName = regexp.MustCompile(`^` + runPrefix + `\d+\` + tmpSuffix + `$`)

// numberIn returns the first number in the name of one of Pebble's files, 0 if there is none.
func numberIn(name string) uint64 {
	n, err := strconv.ParseUint(digits.FindString(name), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

var digits = regexp.MustCompile(`\d+`)

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
