package replica

import (
	"encoding/binary"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/decode"
)

// A position is where a copy is in the log: at the last record of the newest batch that it has. It is
// a state of the copy, written in the same batch, and hidden from the engine:
//
//	+-----------+----------+----------+---------------+------------+
//	| version 1 | topic 16 | token 16 | offset i64 BE | seq u64 BE |
//	+-----------+----------+----------+---------------+------------+
type position struct {
	topic  [16]byte
	token  token  // of the batch
	offset int64  // -1: the copy has no batch
	seq    uint64 // of the batch, in the log
}

var positionKey = []byte("rposition")

const positionVersion = 1

func (p *position) encode() []byte {
	b := append(append([]byte{positionVersion}, p.topic[:]...), p.token[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(p.offset))
	return binary.BigEndian.AppendUint64(b, p.seq)
}

func parsePosition(value []byte) (p position, err error) {
	d := decode.Decoder{Rest: value}
	version := d.Byte()
	copy(p.topic[:], d.Take(16))
	copy(p.token[:], d.Take(16))
	p.offset, p.seq = int64(d.Uint64()), d.Uint64()
	switch {
	case len(value) > 0 && version > positionVersion:
		return position{}, fmt.Errorf("%w: the position of a copy has version %d", storage.ErrNewerFormat, version)
	case d.Bad || len(d.Rest) > 0 || version != positionVersion || p.offset < 0 || p.seq == 0:
		return position{}, fmt.Errorf("%w: position of a copy %x", storage.ErrDamaged, value)
	}
	return p, nil
}

// isAt reports whether a record is the one of the position.
func (p *position) isAt(value []byte) bool {
	_, batch, err := parseRecord(value)
	return err == nil && batch != nil && batch.token == p.token && batch.seq == p.seq && batch.part == batch.parts-1
}
