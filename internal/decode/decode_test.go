package decode_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/hapax-dev/hapax/internal/decode"
	"github.com/hapax-dev/hapax/weekbucket"
)

func TestDecoderReadsAppendedFields(t *testing.T) {
	b := binary.AppendUvarint(nil, math.MaxUint64)
	b = binary.AppendVarint(b, math.MinInt64)
	b = append(b, "\x02ab\x00\x01\x03cd!"...)
	d := decode.Decoder{Rest: b}
	if u, v := d.Uvarint(), d.Varint(); u != math.MaxUint64 || v != math.MinInt64 {
		t.Error("numbers:", u, v)
	}
	if text, none, empty, some := d.Bytes(), d.Optional(), d.Optional(), d.Optional(); string(text) != "ab" || none != nil ||
		empty == nil || len(empty) != 0 || string(some) != "cd" {
		t.Errorf("bytes: %q %q %q %q", text, none, empty, some)
	}
	if rest := d.Take(1); string(rest) != "!" || d.Bad || len(d.Rest) != 0 {
		t.Errorf("the rest is %q %v %q", rest, d.Bad, d.Rest)
	}
}

func TestDecoderReadsNumbersOfAFixedSize(t *testing.T) {
	week := weekbucket.Week(2900)
	b := append([]byte{7, 1, 2, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8}, week.AppendKey(nil)...)
	d := decode.Decoder{Rest: append(b, 2, 'a', 'b', 'c')}
	if b, u2, u4, u8 := d.Byte(), d.Uint16(), d.Uint32(), d.Uint64(); b != 7 || u2 != 0x102 || u4 != 0x1020304 || u8 != 0x102030405060708 {
		t.Errorf("numbers: %d %#x %#x %#x", b, u2, u4, u8)
	}
	if w, n := d.Week(), d.Count(1); w != week || n != 2 || d.Bad || len(d.Rest) != 3 {
		t.Errorf("%s, %d items, %v, rest %q", w, n, d.Bad, d.Rest)
	}
}

func TestDecoderRejectsACountThatDoesNotFit(t *testing.T) {
	for _, b := range [][]byte{{3, 1, 2, 3, 4, 5}, binary.AppendUvarint(nil, math.MaxInt32+1), binary.AppendUvarint(nil, math.MaxUint64)} {
		if d := (decode.Decoder{Rest: b}); d.Count(2) != 0 || !d.Bad {
			t.Errorf("%x is a count", b)
		}
	}
	if d := (decode.Decoder{Rest: bytes.Repeat([]byte{0xff}, weekbucket.KeySize)}); d.Week() != 0 || !d.Bad {
		t.Error("a week after the last one")
	}
}

func TestDecoderReturnsZerosAfterTheFirstBadField(t *testing.T) {
	long := bytes.Repeat([]byte{0xff}, 11)
	for name, b := range map[string][]byte{
		"nothing": {}, "a number that is cut": {0x80}, "a number in a longer form": {0x80, 0x00}, "a number of 11 bytes": long, "bytes that are cut": {3, 'a'},
	} {
		d := decode.Decoder{Rest: b}
		if got := d.Bytes(); got != nil || !d.Bad {
			t.Errorf("%s: %q, bad %v", name, got, d.Bad)
		}
		if d.Rest = []byte{1, 'x'}; d.Uvarint() != 0 || d.Varint() != 0 || d.Bytes() != nil || d.Optional() != nil || d.Take(1) != nil ||
			d.Byte() != 0 || d.Uint16() != 0 || d.Uint32() != 0 || d.Uint64() != 0 || d.Count(1) != 0 || !d.Bad {
			t.Errorf("%s: a field after it is read", name)
		}
	}
}
