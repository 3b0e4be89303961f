package decode_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/hapax-dev/hapax/internal/decode"
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

func TestDecoderReturnsZerosAfterTheFirstBadField(t *testing.T) {
	long := bytes.Repeat([]byte{0xff}, 11)
	for name, b := range map[string][]byte{
		"nothing": {}, "a number that is cut": {0x80}, "a number in a longer form": {0x80, 0x00}, "a number of 11 bytes": long, "bytes that are cut": {3, 'a'},
	} {
		d := decode.Decoder{Rest: b}
		if got := d.Bytes(); got != nil || !d.Bad {
			t.Errorf("%s: %q, bad %v", name, got, d.Bad)
		}
		if d.Rest = []byte{1, 'x'}; d.Uvarint() != 0 || d.Varint() != 0 || d.Bytes() != nil || d.Optional() != nil || d.Take(1) != nil || !d.Bad {
			t.Errorf("%s: a field after it is read", name)
		}
	}
}
