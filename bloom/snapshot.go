package bloom

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// ErrCorrupt is wrapped by every error of [Read] except those of its reader. It means that the
// bytes are not a complete, undamaged snapshot that this version of the package can read.
var ErrCorrupt = errors.New("hapax: bloom: corrupt snapshot")

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

	mostLayers = 58       // each is at least twice as large as the one before
	pieceBytes = 64 << 10 // written at once

	readBytes  = 32 << 10 // read at once
	readPieces = 4        // in memory while a snapshot is read
	decoders   = 2        // goroutines
)

// WriteTo writes a snapshot of f in pieces. It uses 64 KiB of memory, regardless of the size of the
// filter. Other goroutines may continue adding: the snapshot contains every hash whose Add had
// returned when WriteTo was called, and may contain later ones. Its size is Bytes and a few hundred
// more.
//
// A snapshot contains neither its owner nor its age: the caller records these separately.
func (f *Filter) WriteTo(w io.Writer) (written int64, err error) {
	newest := f.newest.Load()
	sum := xxhash.New()
	b := f.appendHeader(make([]byte, 0, pieceBytes), newest)
	flush := func() error {
		_, _ = sum.Write(b) // it returns no error
		n, err := w.Write(b)
		written += int64(n)
		b = b[:0]
		return err
	}
	for l := newest; l != nil; l = l.older {
		for i := range l.blocks {
			if len(b)+blockBytes > pieceBytes {
				if err := flush(); err != nil {
					return written, err
				}
			}
			block := &l.blocks[i]
			for lane := range block {
				b = binary.LittleEndian.AppendUint64(b, atomic.LoadUint64(&block[lane]))
			}
		}
	}
	runtime.KeepAlive(f)
	if err := flush(); err != nil {
		return written, err
	}
	n, err := w.Write(binary.LittleEndian.AppendUint64(b, sum.Sum64()))
	return written + int64(n), err
}

// appendHeader appends the header of a snapshot of newest and the layers behind it.
func (f *Filter) appendHeader(dst []byte, newest *layer) []byte {
	dst = append(dst, magic...)
	dst = binary.LittleEndian.AppendUint32(dst, formatVersion)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(newest.chainLen()))
	dst = binary.LittleEndian.AppendUint64(dst, f.o.BitsPerKey)
	dst = binary.LittleEndian.AppendUint64(dst, f.capAtLeast(newest.chainBytes()))
	for l := newest; l != nil; l = l.older {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(len(l.blocks)))
		dst = binary.LittleEndian.AppendUint64(dst, l.added.Load())
	}
	return dst
}

// capAtLeast returns MaxBytes, or the size of the filter if SetMaxBytes has lowered MaxBytes below
// it, because Read rejects layers beyond the limit.
func (f *Filter) capAtLeast(bytes uint64) uint64 {
	if f.o.MaxBytes == 0 {
		return 0
	}
	return max(f.o.MaxBytes, bytes)
}

// Read reads a snapshot of at most size bytes from r and returns its filter. It reads no byte after
// the snapshot, so that several can follow each other. The filter has the BitsPerKey and MaxBytes
// it was made with (see [Filter.SetMaxBytes]), and Grow of the options; the others are not used.
//
// Read returns [ErrCorrupt] if the snapshot is torn, foreign or damaged, and the error of r if
// reading fails. It never returns a partial filter. It allocates about size at most, regardless of
// the sizes in the header, and holds the filter once.
func Read(r io.Reader, size int64, o Options) (*Filter, error) {
	sum := xxhash.New()
	summed := io.TeeReader(r, sum)
	f, layers, err := readHeader(summed, size)
	if err != nil {
		return nil, err
	}
	f.o.Grow = o.Grow
	if err := f.readLayers(summed, layers); err != nil {
		return nil, err
	}
	got := sum.Sum64()
	var b [sumBytes]byte
	if err := readFull(r, b[:]); err != nil {
		return nil, err
	}
	if want := binary.LittleEndian.Uint64(b[:]); got != want {
		return nil, corrupt("checksum %016x, want %016x", got, want)
	}
	l := f.newest.Load()
	f.refused.Store(l.added.Load() > l.design)
	return f, nil
}

// A layerHeader is the entry of a layer in the header.
type layerHeader struct{ blocks, added uint64 }

// readHeader returns the filter of a snapshot without its layers, and their entries in the header.
// It checks every number except the checksum, and that everything fits into size.
func readHeader(r io.Reader, size int64) (*Filter, []layerHeader, error) {
	if size < smallest {
		return nil, nil, corrupt("%d bytes, want at least %d", size, smallest)
	}
	b := make([]byte, headerBytes)
	if err := readFull(r, b); err != nil {
		return nil, nil, err
	}
	if string(b[:8]) != magic {
		return nil, nil, corrupt("magic %q, want %q", b[:8], magic)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != formatVersion {
		return nil, nil, corrupt("format version %d, want %d", v, formatVersion)
	}
	n := uint64(binary.LittleEndian.Uint32(b[12:]))
	if most := min(uint64(size-headerBytes-sumBytes)/perLayerBytes, mostLayers); n == 0 || n > most {
		return nil, nil, corrupt("%d layers where there may be 1 to %d", n, most)
	}
	f := &Filter{o: Options{
		BitsPerKey: binary.LittleEndian.Uint64(b[16:]),
		MaxBytes:   binary.LittleEndian.Uint64(b[24:]),
	}}
	if f.o.BitsPerKey < minBitsPerKey || f.o.BitsPerKey > maxBitsPerKey {
		return nil, nil, corrupt("%d bits per key", f.o.BitsPerKey)
	}
	table := make([]byte, n*perLayerBytes)
	if err := readFull(r, table); err != nil {
		return nil, nil, err
	}
	layers, err := readLayerHeaders(table, uint64(size)-headerBytes-sumBytes-n*perLayerBytes, f.o.MaxBytes)
	return f, layers, err
}

// readLayerHeaders reads the table of layers. All blocks together have at most the given number of
// bytes.
func readLayerHeaders(table []byte, bytes, maxBytes uint64) ([]layerHeader, error) {
	room := bytes / blockBytes
	if maxBytes != 0 {
		room = min(room, maxBytes/blockBytes)
	}
	layers := make([]layerHeader, len(table)/perLayerBytes)
	for i := range layers {
		l := layerHeader{
			blocks: binary.LittleEndian.Uint64(table[i*perLayerBytes:]),
			added:  binary.LittleEndian.Uint64(table[i*perLayerBytes+8:]),
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

// A piece is a part of a snapshot, and the blocks of a layer to which it belongs.
type piece struct {
	bytes  []byte
	layer  *layer
	blocks []block
}

// readLayers fills a filter that is not shared yet. While it reads a piece, other pieces are
// decoded, because decoding uses the filter's memory for the first time, which takes longer than
// reading.
func (f *Filter) readLayers(r io.Reader, layers []layerHeader) error {
	size := min(layers[0].blocks*blockBytes, readBytes) // no layer is larger than the newest
	read, free := make(chan piece), make(chan []byte, readPieces)
	for range readPieces {
		free <- make([]byte, size)
	}
	var decoding sync.WaitGroup
	for range decoders {
		decoding.Go(func() {
			for p := range read {
				p.decode()
				free <- p.bytes[:size]
			}
		})
	}
	defer decoding.Wait()
	defer close(read)
	var newer *layer
	for _, h := range layers {
		l := newLayer(h.blocks, f.o.BitsPerKey, nil)
		l.added.Store(h.added)
		for rest := l.blocks; len(rest) > 0; {
			b := <-free
			n := min(len(rest), len(b)/blockBytes)
			b = b[:n*blockBytes]
			if err := readFull(r, b); err != nil {
				return err
			}
			read <- piece{b, l, rest[:n]}
			rest = rest[n:]
		}
		if newer == nil {
			f.newest.Store(l)
		} else {
			newer.older = l
		}
		newer = l
	}
	return nil
}

func (p piece) decode() {
	for i := range p.blocks {
		for lane := range p.blocks[i] {
			p.blocks[i][lane] = binary.LittleEndian.Uint64(p.bytes[i*blockBytes+8*lane:])
		}
	}
	runtime.KeepAlive(p.layer)
}

// readFull fills b. An end before that is a torn snapshot.
func readFull(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return corrupt("it ends too early")
	}
	return err
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
