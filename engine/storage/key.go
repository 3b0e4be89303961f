package storage

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/hapax-dev/hapax/weekbucket"
)

// The key of a claim is scope | week_start | event_id. No two triples have the same key:
//
//	+----------------------+-----------+------------------+--------+------------------+
//	| scope, 00 as 00 FF   | 00 01     | week, 4 bytes BE | id tag | id               |
//	+----------------------+-----------+------------------+--------+------------------+
//	                                                      |<------- "tail" ---------->|
//
// Keys are ordered by scope and week, so the claims of a scope in a week are one range: a Bucket.
// The id is stored unchanged (tag 01), or packed if its exact text can be restored: a lower-case
// UUID in 16 bytes (tag 02), or an even number of at least 16 lower-case hex digits in half as many
// bytes (tag 03).
const (
	idRaw  = 0x01
	idUUID = 0x02
	idHex  = 0x03

	minHexDigits = 16
	uuidText     = 36
)

// A Bucket identifies all claims of a scope in a week.
type Bucket struct {
	Scope string
	Week  weekbucket.Week
}

func (b Bucket) String() string { return fmt.Sprintf("%q %s", b.Scope, b.Week) }

// AppendPrefix appends the common prefix of the keys of all claims in the bucket. No other key has
// this prefix.
func (b Bucket) AppendPrefix(dst []byte) []byte {
	rest := b.Scope
	for i := strings.IndexByte(rest, 0); i >= 0; i = strings.IndexByte(rest, 0) {
		dst = append(append(dst, rest[:i]...), 0x00, 0xFF)
		rest = rest[i+1:]
	}
	dst = append(append(dst, rest...), 0x00, 0x01)
	return b.Week.AppendKey(dst)
}

// AppendKey appends the key of the claim on id in bucket b.
func (b Bucket) AppendKey(dst, id []byte) []byte {
	return appendID(b.AppendPrefix(dst), id)
}

// ParseKey splits the key of a claim into its bucket and the exact id.
func ParseKey(key []byte) (b Bucket, id []byte, err error) {
	b, tail, err := SplitKey(key)
	if err != nil {
		return Bucket{}, nil, err
	}
	if id, err = parseID(tail); err != nil {
		return Bucket{}, nil, err
	}
	return b, id, nil
}

// SplitKey splits a key into its bucket and the tail that encodes the id. The tail shares memory
// with key.
func SplitKey(key []byte) (b Bucket, tail []byte, err error) {
	scope := make([]byte, 0, 64)
	for i := 0; i < len(key); i++ {
		if key[i] != 0 {
			scope = append(scope, key[i])
			continue
		}
		if i+1 == len(key) {
			break
		}
		i++
		switch key[i] {
		case 0xFF:
			scope = append(scope, 0)
		case 0x01:
			rest := key[i+1:]
			if len(scope) == 0 || len(rest) < weekbucket.KeySize {
				return Bucket{}, nil, fmt.Errorf("%w: claim key %x has no scope or no week", ErrDamaged, key)
			}
			week, err := weekbucket.FromKey(rest[:weekbucket.KeySize])
			if err != nil {
				return Bucket{}, nil, fmt.Errorf("%w: claim key %x: %w", ErrDamaged, key, err)
			}
			return Bucket{Scope: string(scope), Week: week}, rest[weekbucket.KeySize:], nil
		default:
			return Bucket{}, nil, fmt.Errorf("%w: claim key %x has a broken escape", ErrDamaged, key)
		}
	}
	return Bucket{}, nil, fmt.Errorf("%w: claim key %x has no end of scope", ErrDamaged, key)
}

func appendID(dst, id []byte) []byte {
	if len(id) == uuidText && id[8] == '-' && id[13] == '-' && id[18] == '-' && id[23] == '-' {
		if first, last, ok := packUUID((*[uuidText]byte)(id)); ok {
			return le.AppendUint64(le.AppendUint64(append(dst, idUUID), first), last)
		}
	}
	if len(id) >= minHexDigits && len(id)%2 == 0 {
		if packed, ok := appendPacked(append(dst, idHex), id); ok {
			return packed
		}
	}
	return append(append(dst, idRaw), id...)
}

func parseID(tail []byte) ([]byte, error) {
	if len(tail) < 2 {
		return nil, fmt.Errorf("%w: claim key without an id", ErrDamaged)
	}
	packed := tail[1:]
	var id []byte
	switch tail[0] {
	case idRaw:
		id = bytes.Clone(packed)
	case idUUID:
		if len(packed) != 16 {
			return nil, fmt.Errorf("%w: packed UUID of %d bytes", ErrDamaged, len(packed))
		}
		id = make([]byte, 0, uuidText)
		for i, part := range [][]byte{packed[0:4], packed[4:6], packed[6:8], packed[8:10], packed[10:16]} {
			if i > 0 {
				id = append(id, '-')
			}
			id = hex.AppendEncode(id, part)
		}
	case idHex:
		id = hex.AppendEncode(nil, packed)
	default:
		return nil, fmt.Errorf("%w: id tag %#x", ErrDamaged, tail[0])
	}
	// Each id has only one key, so any other encoding is damage.
	if !bytes.Equal(appendID(nil, id), tail) {
		return nil, fmt.Errorf("%w: id %q is not encoded as it would be written", ErrDamaged, id)
	}
	return id, nil
}

var le = binary.LittleEndian

// packUUID returns the 16 bytes of a UUID in lower-case hex digits, the first byte in the lowest
// bits. It returns false if the text is not in that form.
func packUUID(text *[uuidText]byte) (first, last uint64, ok bool) {
	a, bad := packDigits(le.Uint64(text[0:]))
	b, bad1 := packDigits(uint64(le.Uint32(text[9:])) | uint64(le.Uint32(text[14:]))<<32)
	c, bad2 := packDigits(uint64(le.Uint32(text[19:])) | uint64(le.Uint32(text[24:]))<<32)
	d, bad3 := packDigits(le.Uint64(text[28:]))
	return uint64(a) | uint64(b)<<32, uint64(c) | uint64(d)<<32, bad|bad1|bad2|bad3 == 0
}

// packDigits packs eight hex digits, the first in the lowest byte, into four bytes. bad is not 0 if
// one of them is not a lower-case hex digit. It computes all bytes of the word at once.
func packDigits(eight uint64) (four uint32, bad uint64) {
	const ones = 0x0101010101010101
	n := eight&(0x0f*ones) + eight>>6&ones*9 // for a to f: 1 to 6, plus 9; at most 24
	letter := (n + 6*ones) >> 4 & ones       // from 10 on
	bad = n&(0xf0*ones) | (eight ^ (n + '0'*ones + letter*('a'-'0'-10)))
	n = (n<<4 | n>>8) & 0x00ff00ff00ff00ff
	n = (n | n>>8) & 0x0000ffff0000ffff
	return uint32(n | n>>16), bad
}

// appendPacked appends the bytes of an even number of lower-case hex digits. It returns false if
// the text is not in that form.
func appendPacked(dst, digits []byte) ([]byte, bool) {
	for i := 0; i+1 < len(digits); i += 2 {
		hi, lo := nibbles[digits[i]], nibbles[digits[i+1]]
		if (hi|lo)&notHex != 0 {
			return dst, false
		}
		dst = append(dst, hi<<4|lo)
	}
	return dst, true
}

// nibbles has the value of each lower-case hex digit, and notHex for every other byte.
var nibbles = func() (t [256]byte) {
	for i := range t {
		t[i] = notHex
	}
	for i, c := range []byte("0123456789abcdef") {
		t[c] = byte(i)
	}
	return t
}()

const notHex = 0x80
