// Package crc32c computes the CRC-32C (Castagnoli) of RFC 3720, the checksum of all stored data of
// Hapax. Processors compute it in hardware.
package crc32c

import (
	"hash"
	"hash/crc32"
)

var table = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the checksum of b.
func Checksum(b []byte) uint32 { return crc32.Checksum(b, table) }

// Update returns the checksum of the bytes whose checksum is crc, followed by b.
func Update(crc uint32, b []byte) uint32 { return crc32.Update(crc, table, b) }

// New returns a hash that computes the checksum of the bytes written to it.
func New() hash.Hash32 { return crc32.New(table) }
