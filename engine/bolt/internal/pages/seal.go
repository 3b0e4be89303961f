package pages

import (
	"encoding/binary"

	"github.com/hapax-dev/hapax/internal/crc32c"
)

// Every stored value ends in a checksum, in little endian:
//
//	CRC-32C(space, prefix, key, record) xor (key size * 0x9E3779B1)
//
// space and prefix identify the entry's bucket, so that the entry is not valid in another bucket.
const keyFold = 0x9E3779B1

// SealSize is the size of a checksum.
const SealSize = 4

// Seed returns the seed of the checksums of a bucket's entries.
func Seed(space byte, prefix []byte) uint32 {
	return crc32c.Update(crc32c.Checksum([]byte{space}), prefix)
}

// AppendEntry appends key, record and checksum.
func AppendEntry(dst []byte, seed uint32, key, record []byte) []byte {
	from := len(dst)
	dst = append(append(dst, key...), record...)
	return binary.LittleEndian.AppendUint32(dst, sum32(seed, dst[from:], len(key)))
}

func sum32(seed uint32, body []byte, keySize int) uint32 {
	return crc32c.Update(seed, body) ^ uint32(keySize)*keyFold
}

func intact(seed uint32, entry []byte, keySize int) bool {
	n := len(entry) - SealSize
	return n >= keySize && binary.LittleEndian.Uint32(entry[n:]) == sum32(seed, entry[:n], keySize)
}
