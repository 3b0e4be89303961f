package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crc32c"
	"github.com/hapax-dev/hapax/internal/fuzztest"
)

// Each fuzz target checks one decoder for three promises: it does not panic, it allocates no more
// than its input justifies, and the bytes that it accepts are the encoding of the result. Every
// error is one of the stated ones.

// decodes checks a decoder for the promises; encode encodes the result.
func decodes(t *testing.T, input []byte, decode func() error, encode func() []byte) {
	t.Helper()
	var err error
	kept := bytes.Clone(input)
	fuzztest.Frugal(t, input, func() { err = decode() })
	switch {
	case !bytes.Equal(kept, input):
		t.Fatalf("the input was changed from %x to %x", kept, input)
	case err != nil && !errors.Is(err, storage.ErrDamaged) && !errors.Is(err, storage.ErrNewerFormat) && !errors.Is(err, errUnusable):
		t.Fatalf("not one of the stated errors: %v", err)
	case err == nil && encode != nil && !bytes.Equal(encode(), input):
		t.Fatalf("%x is accepted, but would be written as %x", input, encode())
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte{1, 0, 2, 5, 1, 0xd8, 4})
	f.Add([]byte{1, 0x80, 0, 2, 5, 1, 0})
	f.Add([]byte{2, 0, 2, 5, 1, 0})
	f.Add([]byte{0x73, 0, 2, 5, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 2, 1, 'f', 1, 'd'})
	f.Add([]byte{1, 0, 2, 5, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0})
	f.Add([]byte{0x85, 1, 0, 0, 0, 0, 1, 0xac, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r ClaimRecord
		var topic uint64
		encode := appendRecord
		if len(b) > 0 && b[0]&formShort == 0 {
			encode = appendLongRecord // stores of older formats have it also where there is a short form
		}
		decodes(t, b, func() (err error) { r, topic, err = parseRecord(b); return err },
			func() []byte { return encode(nil, &r, topic) })
	})
}

func FuzzParsePosition(f *testing.F) {
	f.Add(OffsetKey{"g", "orders", 3}.stateKey())
	f.Add([]byte("o\xff\xff\xff\xff\x0fg"))
	f.Add([]byte("h\x01g\x01t\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, key []byte) {
		var p OffsetKey
		decodes(t, key, func() (err error) { p, err = parsePosition(key); return err },
			func() []byte { return p.stateKey() })
	})
}

func FuzzParseOffset(f *testing.F) {
	f.Add(Offset{Next: 8, LeaderEpoch: -1, TopicID: [16]byte{1, 2}}.encode())
	f.Add(append([]byte{0x80, 0, 0}, make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, value []byte) {
		var o Offset
		decodes(t, value, func() (err error) { o, err = parseOffset(value); return err },
			func() []byte { return o.encode() })
	})
}

func FuzzParseHold(f *testing.F) {
	f.Add([]byte{0xd7, 4})
	f.Add([]byte{0xd7, 4, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, value []byte) {
		decodes(t, value, func() error {
			at, err := parseHold(value)
			if err == nil && !bytes.Equal(encodeHold(at), value) {
				t.Fatalf("%x is read as %v, which is written as %x", value, at, encodeHold(at))
			}
			return err
		}, nil)
	})
}

func FuzzParseBuckets(f *testing.F) {
	f.Add(encodeBuckets([]storage.Bucket{{Scope: "a", Week: aWeek}, {Scope: "a\x00", Week: aWeek + 1}}))
	f.Add([]byte{})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, value []byte) {
		var buckets []storage.Bucket
		decodes(t, value, func() (err error) { buckets, err = parseBuckets(value); return err },
			func() []byte { return encodeBuckets(buckets) })
	})
}

func FuzzReadJournal(f *testing.F) {
	var w journalWriter
	w.add(bucketRef{1, aWeek}, journalPut, 1)
	w.add(bucketRef{1, aWeek}, journalPut, 2)
	w.add(bucketRef{300, aWeek}, journalRemoved, 3)
	f.Add(w.appendTo(nil))
	f.Add([]byte{})
	f.Add([]byte("\xff\xff\xff\xff\x07\x01\x00\x01\x9c\xd4\x01"))
	f.Fuzz(func(t *testing.T, entry []byte) {
		// An entry lists each bucket once; an entry that repeats one is decoded, and is encoded
		// with its parts joined.
		var runs []journalRun
		read := func(b []byte) error {
			runs = nil
			return readJournal(b, func(id runID, hashes []byte) {
				for i := range runs {
					if runs[i].runID == id {
						runs[i].hashes = appendHashes(runs[i].hashes, hashes)
						return
					}
				}
				runs = append(runs, journalRun{id, appendHashes(nil, hashes)})
			})
		}
		decodes(t, entry, func() error { return read(entry) }, nil)
		want := runs
		var w journalWriter
		for _, r := range runs {
			for _, h := range r.hashes {
				w.add(r.runID.bucketRef, r.runID.sign, h)
			}
		}
		again := w.appendTo(nil)
		if err := read(again); err != nil || fmt.Sprint(runs) != fmt.Sprint(want) || len(again) > len(entry) {
			t.Fatalf("%x is read as %v, written as %x, and that read as %v, %v", entry, want, again, runs, err)
		}
	})
}

func FuzzReadSnapshot(f *testing.F) {
	f.Add(aSnapshot().bytes(f), false)
	empty := &snapshot{identity: storage.Identity{Incarnation: 1}, seq: 1}
	f.Add(empty.bytes(f)[4:], true)
	f.Add([]byte("HXSCREEN\x00\x00\x00\x01"), true)
	fixed := empty.bytes(f)[4 : 4+8+4+16+8+8]
	f.Add(append(bytes.Clone(fixed), "\xff\xff\xff\xff\x07"...), true)     // 2^31-1 counts
	f.Add(append(bytes.Clone(fixed), "\x00\xff\xff\xff\xff\x07"...), true) // 2^31-1 weeks
	f.Fuzz(func(t *testing.T, b []byte, isHeader bool) {
		if isHeader { // give it a length and a checksum, or the fields after these are never reached
			b = sealHeader(b)
		}
		var s *snapshot
		decodes(t, b, func() error {
			var err error
			s, err = readSnapshot(b)
			return err
		}, nil)
		if s == nil || s.filters == nil {
			return
		}
		again, err := readSnapshot(s.bytes(t))
		if err != nil || again.identity != s.identity || again.seq != s.seq || fmt.Sprint(again.counts) != fmt.Sprint(s.counts) {
			t.Fatalf("%+v is written and read back as %+v, %v", s, again, err)
		}
	})
}

func sealHeader(header []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(header)))
	b = append(b, header...)
	return binary.BigEndian.AppendUint32(b, crc32c.Checksum(b))
}
