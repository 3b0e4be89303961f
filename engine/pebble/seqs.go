package pebble

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// readSeqs returns the number of the newest batch and that of the first one in the journal.
func readSeqs(db *pebble.DB) (last, floor uint64, err error) {
	if last, err = readSeq(db, lastSeqKey); err == nil {
		floor, err = readSeq(db, trimKey)
	}
	return last, floor, err
}

func readSeq(db *pebble.DB, key byte) (uint64, error) {
	v, closer, err := db.Get([]byte{key})
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, asRead(err)
	}
	defer func() { _ = closer.Close() }()
	return parseSeq(v)
}
