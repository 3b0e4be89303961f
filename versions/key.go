package versions

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/zeebo/xxh3"
)

// Each version of a row has its own key, so that a Put reads nothing. A newer Version comes before
// an older one:
//
//	| table, escaped    | tenant, escaped   | key, escaped      | ^version, 8 bytes  | tie, 8 BE  |
//	| table, escaped    | tenant, escaped   | key, escaped      | ^version, 8 bytes  | 8 bytes 00 | tie, 8 BE | offset, 8 BE |
//	|<------------------ prefix of the row ---------------------|
//
// The second form is that of a Put with an offset. In an escaped part, a byte 00 is encoded as 00
// FF, and 00 01 ends the part. So keys are in the order of their parts, and no row's prefix is a
// prefix of another's. The tie represents the content: 0 is an erasure, 1 a deletion, and any other
// number the hash of the value of a row. So within a version, an erasure comes first, then the Puts
// with offsets, where those of one content are together, the lowest offset first. A group sorts
// them.
//
// A value is a kind and the fields of that kind:
//
//	'r' | payload                       a row without a time
//	't' | time, varint us | payload     a row
//	'p' | payload                       a partial row without a time
//	'q' | time, varint us | payload     a partial row
//	'd' | time of the Delete, varint us a deletion
//	'e'                                 an erasure
const (
	kindRow          = 'r'
	kindTimedRow     = 't'
	kindPartial      = 'p'
	kindTimedPartial = 'q'
	kindDeletion     = 'd'
	kindErasure      = 'e'

	tieErasure  = 0
	tieDeletion = 1
	leastRowTie = 2

	suffixSize       = 16 // ^version and tie
	offsetSuffixSize = 32 // with an offset
)

// appendPart appends an escaped part with its end.
func appendPart[T string | []byte](dst []byte, part T) []byte {
	return append(appendEscaped(dst, part), 0x00, 0x01)
}

func appendEscaped[T string | []byte](dst []byte, part T) []byte {
	for i := range len(part) {
		if dst = append(dst, part[i]); part[i] == 0 {
			dst = append(dst, 0xFF)
		}
	}
	return dst
}

// cutPart reads an escaped part, which skipPart has found, from the start of b.
func cutPart(b []byte) (part, rest []byte) {
	for i := 0; ; i++ {
		if part = append(part, b[i]); b[i] == 0 {
			if i++; b[i] == 0x01 {
				return part[:len(part)-1], b[i+1:]
			}
		}
	}
}

// skipPart returns what follows an escaped part at the start of b.
func skipPart(b []byte) (rest []byte, ok bool) {
	for {
		i := bytes.IndexByte(b, 0)
		if i < 0 || i+1 == len(b) {
			return nil, false
		}
		switch end := b[i+1]; end {
		case 0x01:
			return b[i+2:], true
		case 0xFF:
			b = b[i+2:]
		default:
			return nil, false
		}
	}
}

// rowPrefix returns the common prefix of the keys of a row's versions, which no other key has. It
// has capacity for the rest.
func (t *Table) rowPrefix(tenant string, key []byte) []byte {
	b := make([]byte, 0, len(t.prefix)+len(tenant)+len(key)+8+offsetSuffixSize)
	return appendPart(appendPart(append(b, t.prefix...), tenant), key)
}

// appendSuffix appends the rest of the key of a version without an offset.
func appendSuffix(prefix []byte, version, tie uint64) []byte {
	return binary.BigEndian.AppendUint64(appendVersion(prefix, version), tie)
}

func appendVersion(prefix []byte, version uint64) []byte {
	return binary.BigEndian.AppendUint64(prefix, ^version)
}

// A place is the decoded key of a version.
type place struct {
	row     []byte // its prefix
	version uint64
	tie     uint64
	offset  int64 // 0: none
}

// key returns the key. It appends to the prefix of the row.
func (p place) key() []byte {
	if p.offset == 0 {
		return appendSuffix(p.row, p.version, p.tie)
	}
	key := append(appendVersion(p.row, p.version), 0, 0, 0, 0, 0, 0, 0, 0)
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(key, p.tie), uint64(p.offset))
}

// place reads a key of the table.
func (t *Table) place(key []byte) (p place, err error) {
	rest, mine := bytes.CutPrefix(key, t.prefix)
	rest, ok := skipPart(rest)
	if ok {
		rest, ok = skipPart(rest)
	}
	if !mine || !ok || len(rest) != suffixSize && len(rest) != offsetSuffixSize {
		return place{}, damaged("key %x of a row", key)
	}
	p.row = key[:len(key)-len(rest)]
	p.version, p.tie = ^binary.BigEndian.Uint64(rest), binary.BigEndian.Uint64(rest[8:])
	if len(rest) == offsetSuffixSize {
		zero := p.tie == 0
		p.tie, p.offset = binary.BigEndian.Uint64(rest[16:]), int64(binary.BigEndian.Uint64(rest[24:]))
		if !zero || p.tie == tieErasure || p.offset <= 0 {
			return place{}, damaged("key %x of a row with an offset", key)
		}
	}
	return p, nil
}

// encode returns the value of a row and its tie. It calls now to get the time of a deletion.
func (r *Row) encode(now func() time.Time) (value []byte, tie uint64) {
	if r.Deleted {
		return binary.AppendVarint([]byte{kindDeletion}, now().UnixMicro()), tieDeletion
	}
	kind, timed := byte(kindRow), byte(kindTimedRow)
	if r.Partial {
		kind, timed = kindPartial, kindTimedPartial
	}
	value = make([]byte, 0, 1+binary.MaxVarintLen64+len(r.Payload))
	if r.Time.IsZero() {
		value = append(value, kind)
	} else {
		value = binary.AppendVarint(append(value, timed), r.Time.UnixMicro())
	}
	value = append(value, r.Payload...)
	return value, max(xxh3.Hash(value), leastRowTie)
}

// decode returns the row of a place and its value. The payload shares memory with value. An erasure
// is a deletion.
func (t *Table) decode(p place, value []byte) (r Row, err error) {
	tenant, rest := cutPart(p.row[len(t.prefix):])
	name, _ := cutPart(rest)
	r = Row{Tenant: string(tenant), Key: name, Version: p.version, Offset: p.offset}
	if len(value) == 0 {
		return Row{}, damaged("row %x has no value", p.row)
	}
	ok, body, want := true, value[1:], max(xxh3.Hash(value), leastRowTie)
	switch kind := value[0]; kind {
	case kindRow, kindPartial:
		r.Payload, r.Partial = body, kind == kindPartial
	case kindTimedRow, kindTimedPartial:
		var micros int64
		if micros, body, ok = cutTime(body); ok {
			r.Time, r.Payload, r.Partial = time.UnixMicro(micros).UTC(), body, kind == kindTimedPartial
		}
	case kindDeletion:
		r.Deleted, want = true, tieDeletion
		_, body, ok = cutTime(body)
		ok = ok && len(body) == 0
	case kindErasure:
		r.Deleted, want = true, tieErasure
		ok = len(body) == 0
	default:
		ok = false
	}
	if !ok || p.tie != want {
		return Row{}, damaged("value of version %d of row %x", p.version, p.row)
	}
	return r, nil
}

// cutTime reads a time in microseconds from the start of b.
func cutTime(b []byte) (micros int64, rest []byte, ok bool) {
	micros, n := binary.Varint(b)
	if n <= 0 {
		return 0, nil, false
	}
	return micros, b[n:], true
}
