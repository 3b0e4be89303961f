package pages

import (
	"encoding/binary"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
)

// The pages of bbolt (its format version 2), in the byte order of the machine:
//
//	page            | id u64 | flags u16 | count u16 | overflow u32 | elements | keys and values, without gaps |
//	leaf element    | flags u32 | pos u32 | key size u32 | value size u32 |
//	branch element  | pos u32 | key size u32 | child u64 |
//	bucket value    | root u64 | sequence u64 | if root is 0: a leaf page with id 0 |
//
// pos is relative to the first byte of the element. A page occupies 1 + overflow pages of the file.
// A branch element's key is the first key of its child.
const (
	pageHeader = 16
	dirHeader  = 16

	branchFlag   = 0x01
	leafFlag     = 0x02
	freelistFlag = 0x10

	dirEntry = 0x01 // flags of a leaf element whose value is a bucket

	maxDepth = 32
)

// ElementSize is the size of an entry in its page without key and value.
const ElementSize = 16

var native = binary.NativeEndian

// FileName is the name of the file, in messages.
const FileName = "claims.bolt"

// Damaged returns an error of the file that wraps storage.ErrDamaged.
func Damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", storage.ErrDamaged, FileName, fmt.Errorf(format, args...))
}
