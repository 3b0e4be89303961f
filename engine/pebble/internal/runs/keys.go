package runs

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
)

// Space is the first byte of the keys of claims in tables. The prefix of a bucket and an id follow.
const Space = 'c'

// spanOf returns the range of the claims of a bucket.
func spanOf(prefix []byte) pebble.KeyRange {
	start := append([]byte{Space}, prefix...)
	end := bytes.TrimRight(bytes.Clone(start), "\xff")
	end[len(end)-1]++ // Space is less
	return pebble.KeyRange{Start: start, End: end}
}
