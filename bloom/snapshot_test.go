package bloom

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cespare/xxhash/v2"
)

// goldenFilter has two layers: one full block, and in front of it the two blocks that its limit
// still allows.
func goldenFilter() *Filter {
	return filled(Options{Expected: 8, BitsPerKey: 64, MaxBytes: 192}, 12)
}

const goldenSnapshot = `
	6861706178626c6d
	01000000
	02000000
	4000000000000000
	c000000000000000
	0200000000000000 0400000000000000
	0100000000000000 0800000000000000
	0100000000080000 0400000000400000 0000008000000800 0000000080000002
	0000000000004008 0000000000000900 0042000000000000 0040000001000000
	4000000000200000 2000000000000002 0000180000000000 0004000004000000
	0000008000001000 2008000000000000 0000002000080000 0040000000004000
	0411004280021000 0012840001014400 3800000801108800 0000024420003008
	5000100000000504 0002100000684080 c003208000480000 4014800800060200
	14ddba8744ef61b0
`

// Snapshots are stored: these bytes may never change, and must be readable for as long as the
// format version is 1.
func TestSnapshotIsGolden(t *testing.T) {
	want, err := hex.DecodeString(strings.Join(strings.Fields(goldenSnapshot), ""))
	if err != nil {
		t.Fatal(err)
	}
	if got := snapshot(goldenFilter()); !bytes.Equal(got, want) {
		t.Errorf("snapshot is\n%x\nwant\n%x", got, want)
	}
	f, rest, err := open(want)
	if err != nil || len(rest) != 0 {
		t.Fatalf("Read: %v, %d bytes over", err, len(rest))
	}
	for i := range uint64(12) {
		if !f.MayContain(mix(i)) {
			t.Errorf("hash %d is missing", i)
		}
	}
	if f.Len() != 12 || f.Bytes() != 192 {
		t.Errorf("len %d and %d bytes, want 12 and 192", f.Len(), f.Bytes())
	}
}

func TestOpenedFilterContinuesAsTheOriginal(t *testing.T) {
	for _, keys := range []uint64{0, 1, 2047, 2048, 2049, 9000, 20_000} {
		f := filled(Options{BitsPerKey: 12, MaxBytes: 40 << 10}, keys)
		opened, rest, err := open(snapshot(f))
		if err != nil || len(rest) != 0 {
			t.Fatalf("%d keys: %v, %d bytes over", keys, err, len(rest))
		}
		for i := range uint64(10_000) {
			h := mix(keys/2 + i)
			if a, b := f.Add(h), opened.Add(h); a != b {
				t.Fatalf("%d keys: Add(%#x) = %v, and %v after Read", keys, h, a, b)
			}
		}
		if !bytes.Equal(snapshot(f), snapshot(opened)) {
			t.Errorf("%d keys: filters differ after the same adds", keys)
		}
		if f.Len() != opened.Len() || f.Bytes() != opened.Bytes() || f.Saturated() != opened.Saturated() {
			t.Errorf("%d keys: len %d, bytes %d, saturated %v; opened %d, %d, %v", keys,
				f.Len(), f.Bytes(), f.Saturated(), opened.Len(), opened.Bytes(), opened.Saturated())
		}
	}
}

// A snapshot may be taken after the Add that fills the newest layer and before the next layer
// exists. After Open, no call is making that layer any more.
func TestFilterOpenedFullStillGrows(t *testing.T) {
	f := filled(Options{}, 2047)
	l := f.newest.Load()
	l.added.Store(l.design)
	opened, _, err := open(snapshot(f))
	if err != nil {
		t.Fatal(err)
	}
	if opened.Saturated() {
		t.Error("saturated without a cap")
	}
	for i := range uint64(2048) {
		opened.Add(mix(1<<32 + i))
	}
	old := opened.newest.Load().older
	if old == nil || old.added.Load() > old.design*9/8 {
		t.Errorf("%d keys, oldest layer %+v", opened.Len(), old)
	}
}

func TestSnapshotsCanBeConcatenated(t *testing.T) {
	b := []byte("before")
	sizes := []uint64{0, 5, 3000, 1}
	for _, n := range sizes {
		b = append(b, snapshot(filled(Options{}, n))...)
	}
	b = append(b, "after"...)

	rest := b[len("before"):]
	for _, n := range sizes {
		var f *Filter
		var err error
		if f, rest, err = open(rest); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(snapshot(f), snapshot(filled(Options{}, n))) {
			t.Errorf("the filter of %d hashes differs after a round trip", n)
		}
	}
	if string(b[:6]) != "before" || string(rest) != "after" {
		t.Errorf("around them: %q and %q", b[:6], rest)
	}
}

// The reader may return few bytes at once, and what follows the snapshot is not read.
func TestSnapshotIsReadInWhateverPiecesTheReaderGives(t *testing.T) {
	const after = "after"
	want := snapshot(filled(Options{Expected: 60_000}, 100_000)) // layers of more than one piece
	for _, reader := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader} {
		r := bytes.NewReader(append(bytes.Clone(want), after...))
		f, err := Read(reader(r), r.Size(), Options{})
		if err != nil || !bytes.Equal(snapshot(f), want) {
			t.Fatalf("another filter, or none: %v", err)
		}
	}
}

func TestErrorsOfReaderAndWriterAreReturned(t *testing.T) {
	f := filled(Options{Expected: 60_000}, 100_000)
	whole := snapshot(f)
	eio := errors.New("EIO")
	for _, n := range []int{0, 10, 40, 100, 200_000, len(whole) - 4} {
		r := io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(eio))
		if f, err := Read(r, int64(len(whole)), Options{}); f != nil || !errors.Is(err, eio) || errors.Is(err, ErrCorrupt) {
			t.Errorf("after %d bytes: filter %v, error %v", n, f != nil, err)
		}
		if got, err := f.WriteTo(&fullWriter{room: n, err: eio}); got != int64(n) || !errors.Is(err, eio) {
			t.Errorf("room for %d bytes: %d written, error %v", n, got, err)
		}
	}
}

// A fullWriter takes room bytes and no more.
type fullWriter struct {
	room int
	err  error
}

func (w *fullWriter) Write(p []byte) (int, error) {
	if len(p) <= w.room {
		w.room -= len(p)
		return len(p), nil
	}
	n := w.room
	w.room = 0
	return n, w.err
}

// What is read or written is held once, and in addition a piece.
func TestSnapshotTakesOnePieceOfMemory(t *testing.T) {
	f := filled(Options{Expected: 1 << 20}, 1000)
	b := snapshot(f)
	allocated := func(what func()) uint64 {
		least := uint64(math.MaxUint64)
		for range 5 { // the runtime allocates, too
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			what()
			runtime.ReadMemStats(&after)
			least = min(least, after.TotalAlloc-before.TotalAlloc)
		}
		return least
	}
	const more = 3 * pieceBytes
	if n := allocated(func() { _, _ = f.WriteTo(io.Discard) }); n > more {
		t.Errorf("writing %d bytes allocates %d", len(b), n)
	}
	n := allocated(func() {
		if _, _, err := open(b); err != nil {
			t.Error(err)
		}
	})
	if n > f.Bytes()+more {
		t.Errorf("reading a filter of %d bytes allocates %d", f.Bytes(), n)
	}
}

func TestOpenedFilterSharesNothingWithTheBytes(t *testing.T) {
	b := snapshot(goldenFilter())
	f, _, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	clear(b)
	for i := range uint64(12) {
		if !f.MayContain(mix(i)) {
			t.Fatalf("hash %d is lost with the bytes", i)
		}
	}
}

func TestEveryFlippedBitIsRejected(t *testing.T) {
	b := snapshot(filled(Options{Expected: 100}, 500))
	for _, follows := range []string{"", strings.Repeat("\x00", 4096), string(b)} {
		b := append(bytes.Clone(b), follows...)
		for i := range 8 * (len(b) - len(follows)) {
			b[i/8] ^= 1 << (i % 8)
			refused(t, b, "bit %d of byte %d flipped", i%8, i/8)
			b[i/8] ^= 1 << (i % 8)
		}
	}
}

func TestEveryTruncatedSnapshotIsRejected(t *testing.T) {
	b := snapshot(filled(Options{Expected: 100}, 500))
	for n := range b {
		refused(t, b[:n:n], "cut to %d of %d bytes", n, len(b))
		torn := append(bytes.Clone(b[:n]), make([]byte, len(b)-n)...)
		if !bytes.Equal(torn, b) {
			refused(t, torn, "zeros from byte %d", n)
		}
	}
}

// The checksums of these snapshots are right.
func TestForeignNumbersAreRejectedBeforeAnythingIsAllocated(t *testing.T) {
	const version, layers, bitsPerKey, capacity, newest = 8, 12, 16, 24, 32
	put32 := func(at int, v uint32) []byte {
		b := forged(0, 2, 1)
		binary.LittleEndian.PutUint32(b[at:], v)
		return b
	}
	put64 := func(at int, v uint64) []byte {
		b := forged(0, 2, 1)
		binary.LittleEndian.PutUint64(b[at:], v)
		return b
	}
	tests := []struct {
		name string
		b    []byte // without the checksum
	}{
		{"magic", put64(0, 0)},
		{"version 0", put32(version, 0)},
		{"version 2", put32(version, 2)},
		{"no bits per key", put64(bitsPerKey, 0)},
		{"few bits per key", put64(bitsPerKey, minBitsPerKey-1)},
		{"many bits per key", put64(bitsPerKey, maxBitsPerKey+1)},
		{"no layers", forged(0)},
		{"one layer of two", put32(layers, 1)},
		{"more layers than are present", put32(layers, 3)},
		{"more layers than fit", put32(layers, math.MaxUint32)},
		{"one empty layer", forged(0, 0)},
		{"an empty layer behind another", forged(0, 1, 0)},
		{"layers of the same size", forged(0, 2, 2)},
		{"a layer less than twice the one before", forged(0, 5, 3)},
		{"layers in the wrong order", forged(0, 1, 2)},
		{"a cap below the layers", forged(191, 2, 1)},
		{"a cap below a block", forged(1, 1)},
		{"one block more than are present", put64(newest, 3)},
		{"64 MiB", put64(newest, 1<<20)},
		{"2^63 blocks", put64(newest, 1<<63)},
		{"2^58 blocks: no bytes at all, modulo 2^64", put64(newest, 1<<58)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := sum(tt.b)
			followed := append(bytes.Clone(b), make([]byte, 2*blockBytes)...)
			n := uint64(math.MaxUint64)
			for try := 0; try < 10 && n > 16<<10; try++ { // the runtime allocates too
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				refused(t, b, "alone")
				refused(t, followed, "followed by zeros")
				runtime.ReadMemStats(&after)
				n = after.TotalAlloc - before.TotalAlloc
			}
			if n > 16<<10 {
				t.Errorf("allocated %d bytes for a snapshot of %d", n, len(b))
			}
		})
	}
	for _, b := range [][]byte{forged(0, 2, 1), forged(192, 2, 1), forged(64, 1), forged(0, 7, 3, 1)} {
		if _, _, err := open(sum(b)); err != nil {
			t.Errorf("a valid one is rejected: %v", err)
		}
	}
}

// forged returns a snapshot of empty layers, newest first, without its checksum. It is encoded as
// if the layers existed.
func forged(maxBytes uint64, blocks ...uint64) []byte {
	b := []byte(magic)
	b = binary.LittleEndian.AppendUint32(b, formatVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(blocks)))
	b = binary.LittleEndian.AppendUint64(b, defaultBitsPerKey)
	b = binary.LittleEndian.AppendUint64(b, maxBytes)
	total := uint64(0)
	for _, n := range blocks {
		b = binary.LittleEndian.AppendUint64(b, n)
		b = binary.LittleEndian.AppendUint64(b, 0)
		total += n
	}
	return append(b, make([]byte, total*blockBytes)...)
}

func FuzzRead(f *testing.F) {
	golden := snapshot(goldenFilter())
	f.Add(golden)
	f.Add(golden[:len(golden)-1])
	f.Add(append(bytes.Clone(golden), golden...))
	f.Add(snapshot(New(Options{Expected: 1})))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		openOrRefuse(t, b)
		openOrRefuse(t, sum(bytes.Clone(b))) // past the checksum
		if len(b) >= sumBytes {
			openOrRefuse(t, sum(bytes.Clone(b[:len(b)-sumBytes])))
		}
	})
}

// openOrRefuse checks that b either gives a filter with exactly the state that b encodes, or an
// ErrCorrupt.
func openOrRefuse(t *testing.T, b []byte) {
	f, rest, err := open(b)
	if err != nil {
		refused(t, b, "fuzz")
		return
	}
	if taken := b[:len(b)-len(rest)]; !bytes.Equal(snapshot(f), taken) {
		t.Fatalf("opened from\n%x\nwritten as\n%x", taken, snapshot(f))
	}
	f.Len()
	f.Saturated()
	if rate := f.EstimatedFPRate(); !(rate >= 0 && rate <= 1) {
		t.Fatalf("rate %v", rate)
	}
	for i := range uint64(100) {
		f.Add(mix(i))
		if !f.MayContain(mix(i)) {
			t.Fatalf("%#x is missing after its Add", mix(i))
		}
	}
}

// snapshot returns what WriteTo writes.
func snapshot(f *Filter) []byte {
	var b bytes.Buffer
	if n, err := f.WriteTo(&b); err != nil || n != int64(b.Len()) {
		panic(fmt.Sprintf("%d bytes were written, %d said, %v", b.Len(), n, err))
	}
	return b.Bytes()
}

// open reads the snapshot at the start of b and returns what follows it.
func open(b []byte) (f *Filter, rest []byte, err error) {
	r := bytes.NewReader(b)
	if f, err = Read(r, r.Size(), Options{}); err != nil {
		return f, nil, err
	}
	return f, b[len(b)-r.Len():], nil
}

func refused(t *testing.T, b []byte, format string, args ...any) {
	t.Helper()
	if f, rest, err := open(b); !errors.Is(err, ErrCorrupt) || f != nil || rest != nil {
		t.Fatalf(format+": filter %v, %d bytes over, error %v", append(args, f != nil, len(rest), err)...)
	}
}

// sum appends the checksum, so that Read takes b for a snapshot.
func sum(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}
