package resume

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// An Author is the store that an offset was committed from: a restored backup has another
// incarnation.
type Author struct {
	UUID        [16]byte
	Incarnation uint64
}

const (
	metadataPrefix = "hapax:"
	openPrefix     = "hapax-open:"
)

// Metadata returns the metadata of the adapter's commits: hapax:<uuid of the store in
// hex>:<incarnation>.
func (a Author) Metadata() string {
	return metadataPrefix + hex.EncodeToString(a.UUID[:]) + ":" + strconv.FormatUint(a.Incarnation, 10)
}

// ParseMetadata reads the metadata of a commit; ours is false if it is not the adapter's.
func ParseMetadata(s string) (a Author, ours bool) {
	rest, ok := strings.CutPrefix(s, metadataPrefix)
	id, incarnation, ok2 := strings.Cut(rest, ":")
	if !ok || !ok2 || len(id) != 2*len(a.UUID) {
		return Author{}, false
	}
	if _, err := hex.Decode(a.UUID[:], []byte(id)); err != nil {
		return Author{}, false
	}
	n, err := strconv.ParseUint(incarnation, 10, 64)
	if err != nil {
		return Author{}, false
	}
	a.Incarnation = n
	return a, true
}

// An OpenMark is the metadata of a commit that was made while the store was unavailable: records
// before its offset were handled without claims. The author is zero if it was unknown whose store
// it is.
type OpenMark struct {
	Is bool
	By Author
	// records below it may be claimed in the store; those at or after the commit's offset may be
	// unhandled
	Until int64
}

// OpenMark returns the metadata hapax-open:<uuid of the store in hex>:<incarnation>:<until>.
func (a Author) OpenMark(until int64) string {
	return fmt.Sprintf("%s%x:%d:%d", openPrefix, a.UUID, a.Incarnation, until)
}

// ParseOpenMark reads the metadata of a commit; it reports whether the metadata is an OpenMark.
func ParseOpenMark(s string) (m OpenMark) {
	rest, ok := strings.CutPrefix(s, openPrefix)
	at := strings.LastIndexByte(rest, ':')
	if !ok || at < 0 {
		return OpenMark{}
	}
	by, ok := ParseMetadata(metadataPrefix + rest[:at])
	until, err := strconv.ParseInt(rest[at+1:], 10, 64)
	if !ok || err != nil || until < 0 {
		return OpenMark{}
	}
	return OpenMark{true, by, until}
}
