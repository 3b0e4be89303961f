package replica

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crc32c"
	"github.com/hapax-dev/hapax/internal/decode"
)

// There are two records. An open begins an ownership, a batch has a part of a storage.Batch (body.go):
//
//	+-------+-----------+--------+------------+-----------+----------+----------+---------+
//	| HXLOG | version 1 | kind O | uuid 16    | seed u64  | token 16 | prev 16  | CRC-32C |
//	+-------+-----------+--------+------------+-----------+----------+----------+---------+
//	| HXLOG | version 1 | kind B | token 16   | seq u64   | part uvarint | parts uvarint | body ... | CRC-32C |
//	+-------+-----------+--------+------------+-----------+--------------+---------------+----------+---------+
//
// Numbers are big endian. The token is random; prev is that of the newest open that the writer has
// read, zeros for none. A record without the first five bytes is foreign, and ignored.
const (
	magic         = "HXLOG"
	recordVersion = 1
	kindOpen      = 'O'
	kindBatch     = 'B'

	headSize = len(magic) + 2
	crcSize  = 4
)

// A token identifies one open record.
type token [16]byte

func newToken() (t token) {
	_, _ = rand.Read(t[:]) // it never returns an error
	return t
}

type openRecord struct {
	id    storage.Identity // of the store, of the first incarnation
	token token
	prev  token
}

type batchRecord struct {
	token token
	seq   uint64
	part  uint64
	parts uint64
	body  []byte // of this part
}

func (r *openRecord) encode() []byte {
	b := append([]byte(magic), recordVersion, kindOpen)
	b = append(b, r.id.UUID[:]...)
	b = binary.BigEndian.AppendUint64(b, r.id.Seed)
	b = append(b, r.token[:]...)
	return seal(append(b, r.prev[:]...))
}

func (r *batchRecord) appendTo(b []byte) []byte {
	b = append(append(b, magic...), recordVersion, kindBatch)
	b = append(b, r.token[:]...)
	b = binary.BigEndian.AppendUint64(b, r.seq)
	b = binary.AppendUvarint(b, r.part)
	b = binary.AppendUvarint(b, r.parts)
	return seal(append(b, r.body...))
}

func seal(b []byte) []byte { return binary.BigEndian.AppendUint32(b, crc32c.Checksum(b)) }

// parseRecord reads a record: one of open and batch is not nil, or both are nil if it is foreign. The
// body shares memory with value.
func parseRecord(value []byte) (*openRecord, *batchRecord, error) {
	if !bytes.HasPrefix(value, []byte(magic)) {
		return nil, nil, nil
	}
	if len(value) > len(magic) && value[len(magic)] != recordVersion {
		return nil, nil, fmt.Errorf("%w: the changelog has a record of version %d, this build knows version %d", storage.ErrNewerFormat, value[len(magic)], recordVersion)
	}
	n := len(value) - crcSize
	if n < headSize || binary.BigEndian.Uint32(value[n:]) != crc32c.Checksum(value[:n]) {
		return nil, nil, damaged("a record of %d bytes does not match its checksum", len(value))
	}
	d := decode.Decoder{Rest: value[headSize:n]}
	switch kind := value[headSize-1]; kind {
	case kindOpen:
		r := &openRecord{id: storage.Identity{Incarnation: 1}}
		copy(r.id.UUID[:], d.Take(16))
		r.id.Seed = d.Uint64()
		copy(r.token[:], d.Take(16))
		copy(r.prev[:], d.Take(16))
		if d.Bad || len(d.Rest) > 0 || r.token == (token{}) {
			return nil, nil, damaged("an open record of %d bytes is malformed", len(value))
		}
		return r, nil, nil
	case kindBatch:
		r := &batchRecord{}
		copy(r.token[:], d.Take(16))
		r.seq, r.part, r.parts = d.Uint64(), d.Uvarint(), d.Uvarint()
		r.body = d.Rest
		if d.Bad || r.seq == 0 || r.part >= r.parts {
			return nil, nil, damaged("a batch record of %d bytes is malformed", len(value))
		}
		return nil, r, nil
	default:
		return nil, nil, damaged("a record has the unknown kind %q", kind)
	}
}
