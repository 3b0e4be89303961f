package storage

import (
	"bytes"
	"errors"
	"testing"

	"github.com/hapax-dev/hapax/internal/fuzztest"
)

// decodes checks three promises of a decoder: it does not panic, it allocates no more than its
// input warrants, and what it accepts encodes to the bytes it was given; encode returns what it has
// read as it would be written.
func decodes(t *testing.T, input []byte, decode func() error, encode func() []byte) {
	t.Helper()
	var err error
	kept := bytes.Clone(input)
	fuzztest.Frugal(t, input, func() { err = decode() })
	switch {
	case !bytes.Equal(kept, input):
		t.Fatalf("the input was changed from %x to %x", kept, input)
	case err != nil && !errors.Is(err, ErrDamaged):
		t.Fatalf("not ErrDamaged: %v", err)
	case err == nil && encode != nil && !bytes.Equal(encode(), input):
		t.Fatalf("%x is accepted, but would be written as %x", input, encode())
	}
}

func addKeys(f *testing.F) {
	for _, id := range []string{"bc", "\x00\xff", "01234567-89ab-cdef-0123-456789abcdef", "0011223344556677"} {
		f.Add(Bucket{"a", aWeek}.AppendKey(nil, []byte(id)))
		f.Add(Bucket{"a\x00b\xff", aWeek}.AppendKey(nil, []byte(id)))
	}
	f.Add([]byte("a\x00\x01"))
	f.Add([]byte("a\x00\x01\xff\xff\xff\xff\x01a"))
	f.Add([]byte("a\x00\x02\x00\x01"))
}

func FuzzParseKey(f *testing.F) {
	addKeys(f)
	f.Fuzz(func(t *testing.T, key []byte) {
		var b Bucket
		var id []byte
		decodes(t, key, func() (err error) { b, id, err = ParseKey(key); return err },
			func() []byte { return b.AppendKey(nil, id) })
	})
}

func FuzzSplitKey(f *testing.F) {
	addKeys(f)
	f.Fuzz(func(t *testing.T, key []byte) {
		var b Bucket
		var tail []byte
		decodes(t, key, func() (err error) { b, tail, err = SplitKey(key); return err },
			func() []byte { return append(b.AppendPrefix(nil), tail...) })
	})
}

func FuzzParseID(f *testing.F) {
	f.Add([]byte("\x01bc"))
	f.Add([]byte("\x020123456789abcdef"))
	f.Add([]byte("\x0301234567"))
	f.Add([]byte("\x0100112233445566"))
	f.Fuzz(func(t *testing.T, tail []byte) {
		var id []byte
		decodes(t, tail, func() (err error) { id, err = parseID(tail); return err },
			func() []byte { return appendID(nil, id) })
	})
}
