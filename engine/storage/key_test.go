package storage

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/weekbucket"
)

// docs/format.md describes the golden keys below. They are stored forever: if a test fails here,
// existing stores can no longer be read.

const (
	aWeek weekbucket.Week = 0x19cd4

	maxScope = 255 // the lengths that the engine allows
	maxID    = 16 << 10
)

func wantBytes(t *testing.T, got []byte, want string) {
	t.Helper()
	if want = strings.ReplaceAll(want, " ", ""); hex.EncodeToString(got) != want {
		t.Errorf("encoded as\n%x, the format is\n%s", got, want)
	}
}

func TestGoldenKeys(t *testing.T) {
	const week = "00019cd4"
	for _, c := range []struct{ scope, id, want string }{
		{"a", "bc", "61 0001" + week + "01 6263"},
		{"ab", "c", "6162 0001" + week + "01 63"},
		{"a|b", "c", "617c62 0001" + week + "01 63"},
		{"a\x00b", "c", "61 00ff 62 0001" + week + "01 63"},
		{"\x00", "\x00", "00ff 0001" + week + "01 00"},
		{"\xff\x00\x01", "\xff", "ff 00ff 01 0001" + week + "01 ff"},
		{"s", "01234567-89ab-cdef-0123-456789abcdef", "73 0001" + week + "02 0123456789abcdef0123456789abcdef"},
		{"s", "01234567-89AB-cdef-0123-456789abcdef", "73 0001" + week + "01" + hex.EncodeToString([]byte("01234567-89AB-cdef-0123-456789abcdef"))},
		{"s", "00ff00ff00ff00ff", "73 0001" + week + "03 00ff00ff00ff00ff"},
		{"s", "0123456789abcdef0123456789abcdef", "73 0001" + week + "03 0123456789abcdef0123456789abcdef"},
		{"s", "00ff00ff00ff00f", "73 0001" + week + "01" + hex.EncodeToString([]byte("00ff00ff00ff00f"))},
		{"s", "00ff00ff00ff00", "73 0001" + week + "01" + hex.EncodeToString([]byte("00ff00ff00ff00"))},
		{"s", "00ff00ff00ff00ff0", "73 0001" + week + "01" + hex.EncodeToString([]byte("00ff00ff00ff00ff0"))},
		{"s", "00FF00ff00ff00ff", "73 0001" + week + "01" + hex.EncodeToString([]byte("00FF00ff00ff00ff"))},
	} {
		key := Bucket{c.scope, aWeek}.AppendKey(nil, []byte(c.id))
		wantBytes(t, key, c.want)
		if b, id, err := ParseKey(key); err != nil || b != (Bucket{c.scope, aWeek}) || string(id) != c.id {
			t.Errorf("%q %q: told back as %q %q, %v", c.scope, c.id, b.Scope, id, err)
		}
	}
	wantBytes(t, Bucket{"a\x00", aWeek}.AppendPrefix(nil), "61 00ff 0001 00019cd4")
	wantBytes(t, Bucket{"a", weekbucket.Max}.AppendPrefix(nil), "61 0001 0007f5fa")
}

// hostile draws byte strings with a meaning in the encoding, and other ones.
func hostile(name string, least, most int) *rapid.Generator[string] {
	pieces := []string{"\x00", "\x01", "\xff", "\x00\x01", "\x00\xff", "|", "a", "b", "bc", "\x00\x01\x00\x01\x9c\xd4",
		"01234567-89ab-cdef-0123-456789abcdef", "0123456789ABCDEF", "0011223344556677", "f", "\xc3\x28"}
	return rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOfN(rapid.SampledFrom(pieces), 1, 5).Draw(t, name)
		s := strings.Join(parts, "")
		if rapid.Bool().Draw(t, "any bytes") {
			s += string(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "bytes"))
		}
		if len(s) < least {
			s += strings.Repeat("x", least-len(s))
		}
		return s[:min(len(s), most)]
	})
}

type triple struct {
	scope string
	week  weekbucket.Week
	id    string
}

func drawTriple(t *rapid.T) triple {
	return triple{
		hostile("scope", 1, maxScope).Draw(t, "scope"),
		rapid.SampledFrom([]weekbucket.Week{0, 1, 0xff, 0x100, aWeek, aWeek + 1, weekbucket.Max}).Draw(t, "week"),
		hostile("id", 1, maxID).Draw(t, "id"),
	}
}

func (x triple) String() string { return fmt.Sprintf("(%q, %d, %q)", x.scope, x.week, x.id) }

func (x triple) key() []byte { return Bucket{x.scope, x.week}.AppendKey(nil, []byte(x.id)) }

func TestKeysAreInjectiveAndDecodeToTheirTriple(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawTriple(t), drawTriple(t)
		if rapid.Bool().Draw(t, "share") { // near misses: a|bc and ab|c, the same scope, the same id
			joined := a.scope + a.id
			cut := rapid.IntRange(1, len(joined)-1).Draw(t, "cut")
			b = triple{joined[:cut], a.week, joined[cut:]}
			if len(b.scope) > maxScope {
				b.scope = b.scope[:maxScope]
			}
		}
		if same := bytes.Equal(a.key(), b.key()); same != (a == b) {
			t.Fatalf("%v and %v have keys %x and %x", a, b, a.key(), b.key())
		}
		bucket, id, err := ParseKey(a.key())
		if got := (triple{bucket.Scope, bucket.Week, string(id)}); err != nil || got != a {
			t.Fatalf("%v is decoded as %v, %v", a, got, err)
		}
	})
}

func TestKeysSortByScopeThenWeekAndABucketIsOneRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawTriple(t), drawTriple(t)
		if rapid.Bool().Draw(t, "longer") {
			b.scope = (a.scope + hostile("more", 1, 10).Draw(t, "more"))
		}
		if rapid.Bool().Draw(t, "same scope") {
			b.scope = a.scope
		}
		want := cmp.Or(strings.Compare(a.scope, b.scope), cmp.Compare(a.week, b.week))
		if got := bytes.Compare(a.key(), b.key()); want != 0 && got != want {
			t.Fatalf("%v and %v compare as %d, their keys %x and %x as %d", a, b, want, a.key(), b.key(), got)
		}
		inside := bytes.HasPrefix(b.key(), Bucket{a.scope, a.week}.AppendPrefix(nil))
		if inside != (want == 0) {
			t.Fatalf("%v begins with the prefix of %v: %v", b, a, inside)
		}
	})
}

func TestIDsAreDecodedByteForByte(t *testing.T) {
	for _, id := range []string{
		"x", "\x00", "\xff", "\xff\xff\xff\xff", "|", "a|b", "\x00\x01", " ", "日本",
		"01234567-89AB-CDEF-0123-456789ABCDEF", "{01234567-89ab-cdef-0123-456789abcdef}", "0123456789abcdef-0123-0123-456789abc",
		"01234567-89ab-cdef-0123-456789abcdeg", "01234567_89ab_cdef_0123_456789abcdef",
		"abcdefabcdefabcdefa", "ABCDEFABCDEFABCDEF", "00112233445566778", "001122334455667g", "0x11223344556677",
		strings.Repeat("f", 36), strings.Repeat("0", maxID), strings.Repeat("\xff", maxID),
	} {
		b, got, err := ParseKey(Bucket{"s", aWeek}.AppendKey(nil, []byte(id)))
		if err != nil || string(got) != id || b != (Bucket{"s", aWeek}) {
			t.Errorf("%.60q is decoded as %.60q, %v", id, got, err)
		}
	}
}

func TestAnIDHasOnlyOneKey(t *testing.T) {
	b := Bucket{"s", aWeek}
	for _, tail := range []string{
		"\x0101234567-89ab-cdef-0123-456789abcdef", // would be packed as a UUID
		"\x010011223344556677",                     // would be packed as hex
		"\x03\x00\x11\x22",                         // too short to be packed
		"\x02\x00",                                 // no UUID
		"\x04abc", "\x00", "\x01", "",
	} {
		key := append(b.AppendPrefix(nil), tail...)
		if _, id, err := ParseKey(key); !errors.Is(err, ErrDamaged) {
			t.Errorf("tail %x is read as %q, %v", tail, id, err)
		}
	}
}

func TestUUIDsArePackedAsTheirDigits(t *testing.T) {
	const uuid = "01234567-89ab-cdef-fedc-ba9876543210"
	plain := func(text []byte) (packed [16]byte, ok bool) {
		_, err := hex.Decode(packed[:], bytes.ReplaceAll(text, []byte("-"), nil))
		return packed, err == nil && bytes.Equal(text, bytes.ToLower(text))
	}
	for at := range uuidText {
		if uuid[at] == '-' {
			continue
		}
		for c := range 256 {
			text := [uuidText]byte([]byte(uuid))
			text[at] = byte(c)
			if c == '-' {
				continue // the copy has the wrong length
			}
			want, valid := plain(text[:])
			if got, ok := uuidBytes(&text); ok != valid || ok && got != want {
				t.Fatalf("%q is packed as %x, %v: want %x, %v", text, got, ok, want, valid)
			}
		}
	}
}

func uuidBytes(text *[uuidText]byte) (b [16]byte, ok bool) {
	first, last, ok := packUUID(text)
	le.PutUint64(b[:], first)
	le.PutUint64(b[8:], last)
	return b, ok
}
