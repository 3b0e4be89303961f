package filters

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crc32c"
	"github.com/hapax-dev/hapax/internal/fuzztest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// docs/format.md describes the golden bytes below. They are stored forever: if a test fails here,
// existing stores can no longer be read. A new form gets a new version and a golden test of its
// own.

const aWeek weekbucket.Week = 0x19cd4

func wantBytes(t *testing.T, got []byte, want string) {
	t.Helper()
	if want = strings.ReplaceAll(want, " ", ""); hex.EncodeToString(got) != want {
		t.Errorf("encoded as\n%x, the format is\n%s", got, want)
	}
}

// aSnapshot has one bucket and the filter of one week.
func aSnapshot() *snapshot {
	f := bloom.New(bloom.Options{Expected: 1})
	f.Add(42)
	return &snapshot{
		identity: storage.Identity{UUID: [16]byte{0: 1, 15: 0xff}, Incarnation: 2, Seed: 3},
		seq:      0x1234,
		counts:   map[Bucket]Count{{1, aWeek}: {300, 0x0102030405060708}},
		filters:  map[weekbucket.Week]*bloom.Filter{aWeek: f},
	}
}

func (s *snapshot) bytes(t testing.TB) []byte {
	var b bytes.Buffer
	if err := s.write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// readSnapshot reads a whole sidecar.
func readSnapshot(b []byte) (*snapshot, error) {
	r := bytes.NewReader(b)
	s, weeks, body, err := readSnapshotHeader(r, r.Size())
	if err == nil {
		err = s.readFilters(r, weeks, body, func(weekbucket.Week) grower { return nil })
	}
	return s, err
}

// written is the snapshot of a filter.
func written(t testing.TB, f *bloom.Filter) []byte {
	var b bytes.Buffer
	if _, err := f.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestGoldenSnapshot(t *testing.T) {
	s := aSnapshot()
	header := s.header([]weekbucket.Week{aWeek})
	wantBytes(t, header, "00000041"+
		"485853435245454e 00000001 010000000000000000000000000000ff 0000000000000002 0000000000001234"+
		"01 01 00019cd4 ac02 0102030405060708"+
		"01 00019cd4"+"ef44d2ec")
	if file := s.bytes(t); !bytes.Equal(file[:len(header)], header) ||
		!bytes.Equal(file[len(header):], written(t, s.filters[aWeek])) {
		t.Error("a snapshot is not its header and its filters, one after the other")
	}
	if snapshotNames != [2]string{"screen-0", "screen-1"} {
		t.Error("snapshots are in", snapshotNames)
	}
}

func TestSnapshotIsReadBackComplete(t *testing.T) {
	s := aSnapshot()
	for i := range 300 {
		ref := Bucket{uint64(i), aWeek + weekbucket.Week(i%5)}
		s.counts[ref] = Count{uint64(i) << 20, uint64(i) * 0x9e3779b97f4a7c15}
		if s.filters[ref.Week] == nil {
			s.filters[ref.Week] = bloom.New(bloom.Options{Expected: 100})
		}
		s.filters[ref.Week].Add(uint64(i) * 0x9e3779b97f4a7c15)
	}
	got, err := readSnapshot(s.bytes(t))
	if err != nil {
		t.Fatal(err)
	}
	got.identity.Seed = s.identity.Seed // not stored: the store's own is used
	if got.identity != s.identity || got.seq != s.seq || fmt.Sprint(got.counts) != fmt.Sprint(s.counts) || len(got.filters) != len(s.filters) {
		t.Errorf("read back as %+v", got)
	}
	for week, f := range s.filters {
		if !bytes.Equal(written(t, f), written(t, got.filters[week])) {
			t.Errorf("filter of %s differs", week)
		}
	}
}

func TestDamagedSnapshotIsUnusableWhicheverByteIsDamaged(t *testing.T) {
	whole := aSnapshot().bytes(t)
	read := func(b []byte) error {
		s, err := readSnapshot(b)
		if err != nil && s != nil && s.filters != nil {
			t.Fatalf("%v, and there are filters", err)
		}
		return err
	}
	if err := read(whole); err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		for bit := range 8 {
			b := bytes.Clone(whole)
			b[i] ^= 1 << bit
			if err := read(b); !errors.Is(err, errUnusable) {
				t.Fatalf("bit %d of byte %d of %d flipped: %v", bit, i, len(whole), err)
			}
		}
		if err := read(whole[:i]); !errors.Is(err, errUnusable) {
			t.Fatalf("cut off at byte %d of %d: %v", i, len(whole), err)
		}
	}
	if err := read(append(bytes.Clone(whole), 0)); !errors.Is(err, errUnusable) {
		t.Fatal("with a byte too many:", err)
	}
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
		fuzztest.Decodes(t, b, []error{errUnusable}, func() error {
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
