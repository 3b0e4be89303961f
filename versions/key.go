package versions

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/zeebo/xxh3"
)

// Each version of a row has its own key, so that a Put reads nothing, and the newest one is
// the first of its row:
//
//	+-------------------+-------------------+-------------------+--------------------+------------+
//	| table, escaped    | tenant, escaped   | key, escaped      | ^version, 8 bytes  | tie, 8 BE  |
//	+-------------------+-------------------+-------------------+--------------------+------------+
//	|<------------------ prefix of the row ---------------------|
//
// In an escaped part, a byte 00 is encoded as 00 FF, and 00 01 ends the part, so that parts keep
// their order and no row's prefix begins that of another. Of several values of one version, the
// least tie wins: an erasure, then a deletion, then the row whose value has the least hash.
//
// A value is a kind and the fields of that kind:
//
//	'r' | payload                       a row without a time
//	't' | time, varint us | payload     a row
//	'd' | time of the Delete, varint us a deletion
//	'e'                                 an erasure
const (
	kindRow      = 'r'
	kindTimedRow = 't'
	kindDeletion = 'd'
	kindErasure  = 'e'

	tieErasure  = 0
	tieDeletion = 1
	leastRowTie = 2

	suffixSize = 16 // ^version and tie
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

// cutPart reads an escaped part from the start of b.
func cutPart(b []byte) (part, rest []byte, ok bool) {
	for i := 0; i+1 < len(b); i++ {
		if b[i] != 0 {
			part = append(part, b[i])
			continue
		}
		if i++; b[i] == 0x01 {
			return part, b[i+1:], true
		}
		if b[i] != 0xFF {
			return nil, nil, false
		}
		part = append(part, 0)
	}
	return nil, nil, false
}

// rowPrefix returns the common prefix of the keys of a row's versions, which no other key has. It
// has capacity for the rest.
func (t *Table) rowPrefix(tenant string, key []byte) []byte {
	b := make([]byte, 0, len(t.prefix)+len(tenant)+len(key)+8+suffixSize)
	return appendPart(appendPart(append(b, t.prefix...), tenant), key)
}

func appendSuffix(prefix []byte, version, tie uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(prefix, ^version), tie)
}

// split divides a key into the prefix of its row, the version and the tie.
func split(key []byte) (prefix []byte, version, tie uint64, err error) {
	n := len(key) - suffixSize
	if n < 0 {
		return nil, 0, 0, damaged("key %x of a row is too short", key)
	}
	return key[:n], ^binary.BigEndian.Uint64(key[n:]), binary.BigEndian.Uint64(key[n+8:]), nil
}

// encode returns the value of a row and its tie. It calls now for the time of a deletion.
func (r *Row) encode(now func() time.Time) (value []byte, tie uint64) {
	switch {
	case r.Deleted:
		return binary.AppendVarint([]byte{kindDeletion}, now().UnixMicro()), tieDeletion
	case r.Time.IsZero():
		value = append(make([]byte, 0, 1+len(r.Payload)), kindRow)
	default:
		value = append(make([]byte, 0, 1+binary.MaxVarintLen64+len(r.Payload)), kindTimedRow)
		value = binary.AppendVarint(value, r.Time.UnixMicro())
	}
	value = append(value, r.Payload...)
	return value, max(xxh3.Hash(value), leastRowTie)
}

// decode returns the row of a key and value of the table. The payload shares memory with value. An
// erasure is a deletion.
func (t *Table) decode(key, value []byte) (r Row, err error) {
	prefix, version, tie, err := split(key)
	if err != nil {
		return Row{}, err
	}
	names, mine := bytes.CutPrefix(prefix, t.prefix)
	tenant, rest, ok := cutPart(names)
	name, rest, ok2 := cutPart(rest)
	if !mine || !ok || !ok2 || len(rest) > 0 || len(value) == 0 {
		return Row{}, damaged("row with key %x", key)
	}
	r = Row{Tenant: string(tenant), Key: name, Version: version}
	body, want := value[1:], max(xxh3.Hash(value), leastRowTie)
	switch value[0] {
	case kindRow:
		r.Payload = body
	case kindTimedRow:
		var micros int64
		if micros, body, ok = cutTime(body); ok {
			r.Time, r.Payload = time.UnixMicro(micros).UTC(), body
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
	if !ok || tie != want {
		return Row{}, damaged("value of the row with key %x", key)
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
