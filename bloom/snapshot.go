package bloom

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// ErrCorrupt is wrapped by every error of [Open]: the bytes are not a whole,
// undamaged snapshot that this version of the package can read.
var ErrCorrupt = errors.New("bloom: corrupt snapshot")

// A snapshot, format version 1. Integers are little-endian.
//
//	offset  length
//	     0       8  magic
//	     8       4  format version
//	    12       4  n, the number of layers
//	    16       8  bits per key
//	    24       8  cap on the bytes of all layers together, 0 for none
//	    32    16*n  of each layer, newest first: number of blocks (8),
//	                keys counted as added (8)
//	       64*sum  the blocks in the same order, each as eight words
//	             8  XXH64, seed 0, of everything before it
//
// The bits that a hash selects are part of the format: see block and salts.
const (
	magic         = "hapaxblm"
	formatVersion = 1

	headerBytes   = 32
	perLayerBytes = 16
	sumBytes      = 8
	smallest      = headerBytes + perLayerBytes + blockBytes + sumBytes
)

// AppendSnapshot appends a snapshot of f to dst and returns the extended slice. Other goroutines
// may continue adding: the snapshot contains every hash whose Add had returned when AppendSnapshot
// was called, and may contain later ones. Its size is Bytes and a few hundred more.
//
// A snapshot does not say whose it is or how old: the caller records that separately.
func (f *Filter) AppendSnapshot(dst []byte) []byte {
	newest := f.newest.Load()
	n := newest.chainLen()
	start := len(dst)
	dst = slices.Grow(dst, headerBytes+n*perLayerBytes+int(newest.chainBytes())+sumBytes)

	dst = append(dst, magic...)
	dst = binary.LittleEndian.AppendUint32(dst, formatVersion)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(n))
	dst = binary.LittleEndian.AppendUint64(dst, f.bitsPerKey)
	dst = binary.LittleEndian.AppendUint64(dst, f.capAtLeast(newest.chainBytes()))
	for l := newest; l != nil; l = l.older {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(len(l.blocks)))
		dst = binary.LittleEndian.AppendUint64(dst, l.added.Load())
	}
	for l := newest; l != nil; l = l.older {
		dst = l.appendWords(dst)
	}
	return binary.LittleEndian.AppendUint64(dst, xxhash.Sum64(dst[start:]))
}

// capAtLeast is MaxBytes, or the size of the filter if SetMaxBytes lowered MaxBytes below it: Open
// rejects layers beyond the limit.
func (f *Filter) capAtLeast(bytes uint64) uint64 {
	if f.maxBytes == 0 {
		return 0
	}
	return max(f.maxBytes, bytes)
}

// Open reads the snapshot at the start of the given bytes and returns its filter and the bytes that
// follow it, so that several snapshots can be concatenated. The filter has the BitsPerKey and
// MaxBytes it was made with (see [Filter.SetMaxBytes]), and keeps no reference to the bytes.
//
// Truncated, foreign or damaged bytes are rejected with [ErrCorrupt]; Open never returns a partial
// filter. Open allocates about as many bytes as it is given, whatever sizes the header claims.
func Open(snapshot []byte) (f *Filter, rest []byte, err error) {
	f, layers, err := readHeader(snapshot)
	if err != nil {
		return nil, nil, err
	}
	words := headerBytes + perLayerBytes*len(layers)
	end := words
	for _, l := range layers {
		end += int(l.blocks) * blockBytes
	}
	want := binary.LittleEndian.Uint64(snapshot[end:])
	if got := xxhash.Sum64(snapshot[:end]); got != want {
		return nil, nil, corrupt("checksum %016x, want %016x", got, want)
	}

	var newer *layer
	for _, s := range layers {
		l := newLayer(s.blocks, f.bitsPerKey, nil)
		l.added.Store(s.added)
		words += l.readWords(snapshot[words:end])
		if newer == nil {
			f.newest.Store(l)
		} else {
			newer.older = l
		}
		newer = l
	}
	return f, snapshot[end+sumBytes:], nil
}

// A layerHeader is the entry of a layer in the header.
type layerHeader struct{ blocks, added uint64 }

// readHeader returns the filter of a snapshot without its layers, and their entries in the header.
// It has checked every number except the checksum, and that the snapshot is long enough for all
// layers.
func readHeader(b []byte) (*Filter, []layerHeader, error) {
	if len(b) < smallest {
		return nil, nil, corrupt("%d bytes, want at least %d", len(b), smallest)
	}
	if string(b[:8]) != magic {
		return nil, nil, corrupt("magic %q, want %q", b[:8], magic)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != formatVersion {
		return nil, nil, corrupt("format version %d, want %d", v, formatVersion)
	}
	n := uint64(binary.LittleEndian.Uint32(b[12:]))
	if room := uint64(len(b)-headerBytes-sumBytes) / perLayerBytes; n == 0 || n > room {
		return nil, nil, corrupt("%d layers, want 1 to %d", n, room)
	}
	f := &Filter{
		bitsPerKey: binary.LittleEndian.Uint64(b[16:]),
		maxBytes:   binary.LittleEndian.Uint64(b[24:]),
	}
	if f.bitsPerKey < minBitsPerKey || f.bitsPerKey > maxBitsPerKey {
		return nil, nil, corrupt("%d bits per key", f.bitsPerKey)
	}
	layers, err := readLayerHeaders(b[headerBytes:], int(n), f.maxBytes)
	return f, layers, err
}

// readLayerHeaders reads the table of n layers at the start of b, which is long
// enough for that and the checksum.
func readLayerHeaders(b []byte, n int, maxBytes uint64) ([]layerHeader, error) {
	room := uint64(len(b)-n*perLayerBytes-sumBytes) / blockBytes
	if maxBytes != 0 {
		room = min(room, maxBytes/blockBytes)
	}
	layers := make([]layerHeader, n)
	for i := range layers {
		l := layerHeader{
			blocks: binary.LittleEndian.Uint64(b[i*perLayerBytes:]),
			added:  binary.LittleEndian.Uint64(b[i*perLayerBytes+8:]),
		}
		if l.blocks == 0 || l.blocks > room {
			return nil, corrupt("layer of %d blocks, want 1 to %d", l.blocks, room)
		}
		if i > 0 && l.blocks > layers[i-1].blocks/2 {
			return nil, corrupt("layer of %d blocks behind one of %d", l.blocks, layers[i-1].blocks)
		}
		room -= l.blocks
		layers[i] = l
	}
	return layers, nil
}

func (l *layer) appendWords(dst []byte) []byte {
	for i := range l.blocks {
		b := &l.blocks[i]
		for lane := range b {
			dst = binary.LittleEndian.AppendUint64(dst, atomic.LoadUint64(&b[lane]))
		}
	}
	return dst
}

// readWords reads the words of a layer that is not shared yet, and returns the number of bytes that
// it read from the start of src.
func (l *layer) readWords(src []byte) int {
	for i := range l.blocks {
		b, from := &l.blocks[i], src[i*blockBytes:][:blockBytes]
		for lane := range b {
			b[lane] = binary.LittleEndian.Uint64(from[8*lane:])
		}
	}
	return len(l.blocks) * blockBytes
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
