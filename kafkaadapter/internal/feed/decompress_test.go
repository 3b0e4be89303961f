package feed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kgo"
)

// rawRecords are records as they are in a batch of the log, each with so many bytes.
func rawRecords(n, size int) (b []byte) {
	for range n {
		b = append(binary.AppendVarint(b, int64(size)), make([]byte, size)...)
	}
	return b
}

func TestDecompressorCountsRecords(t *testing.T) {
	b := rawRecords(100, 70)
	if n := countRecords(b); n != 100 {
		t.Errorf("%d records", n)
	}
	if n := countRecords(b[:len(b)-1]); n != 100 {
		t.Errorf("%d records with a torn one", n)
	}
	if n := countRecords(make([]byte, 50)); n != 50 {
		t.Errorf("%d records without contents", n)
	}
}

func TestDecompressorRefusesWhatTheMemoryHasNoRoomFor(t *testing.T) {
	pack := func(b []byte) []byte {
		var packed bytes.Buffer
		w, err := zstd.NewWriter(&packed, zstd.WithWindowSize(1<<18))
		if err = errors.Join(err, func() error { _, err := w.Write(b); return err }(), w.Close()); err != nil {
			t.Fatal(err)
		}
		return packed.Bytes()
	}
	m := NewMemory(1<<20, 1000)
	d, err := NewDecompressor(m)
	if err != nil {
		t.Fatal(err)
	}
	small, large, many := pack(rawRecords(1, 1000)), pack(rawRecords(1, 1<<20)), pack(rawRecords(1<<13, 0))
	if out, err := d.Decompress(small, kgo.CodecZstd); err != nil || len(out) != 1002 {
		t.Errorf("a small batch: %d bytes, %v", len(out), err)
	}
	for _, b := range [][]byte{large, many} {
		if _, err := d.Decompress(b, kgo.CodecZstd); !errors.Is(err, kgo.ErrMaxDecompress) {
			t.Errorf("a batch that needs more than the memory: %v", err)
		}
	}
	read(m, 1000, 1<<19, 1)
	m.hold(1 << 19)
	if _, err := d.Decompress(small, kgo.CodecZstd); !errors.Is(err, ErrFull) {
		t.Errorf("a small batch while queues and the client use up the memory: %v", err)
	}
	if _, err := d.Decompress(small, kgo.CodecNone); err != nil {
		t.Errorf("a batch that is not compressed: %v", err)
	}
	if _, err := d.Uncounted().Decompress(small, kgo.CodecZstd); err != nil {
		t.Errorf("for a reader that keeps nothing: %v", err)
	}
	m.Polled()
	if _, err := d.Decompress(small, kgo.CodecZstd); err != nil {
		t.Errorf("after a poll: %v", err)
	}
}

// A reader that keeps no records needs the memory of one batch.
func TestUncountedBatchesShareMemory(t *testing.T) {
	d, err := NewDecompressor(NewMemory(1<<30, 1000))
	if err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer // its frame does not say how large it becomes
	w, err := zstd.NewWriter(&stream)
	if err != nil {
		t.Fatal(err)
	}
	for range 1 << 10 {
		if _, err := w.Write(bytes.Repeat([]byte{1}, 1<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	u := d.Uncounted()
	var last *byte
	again := 0
	for range 20 {
		out, err := u.Decompress(stream.Bytes(), kgo.CodecZstd)
		if err != nil || len(out) != 1<<20 {
			t.Fatal(len(out), err)
		}
		if last == &out[0] {
			again++
		}
		last = &out[0]
	}
	if again == 0 { // the race detector makes a pool forget some
		t.Error("each batch has memory of its own")
	}
	u.release()
	kept, err := d.Decompress(stream.Bytes(), kgo.CodecZstd)
	if err != nil || &kept[0] == last {
		t.Error("records of the client are in memory that is used again", err)
	}
}

// The client decompresses batches of several brokers at a time, and readers do so beside it: a batch that is
// damaged must not make two of them use the same memory.
func TestDamagedBatchDoesNotShareMemory(t *testing.T) {
	stream := func(b byte) []byte {
		var packed bytes.Buffer
		w, err := zstd.NewWriter(&packed, zstd.WithEncoderCRC(false))
		for range 1 << 6 {
			if err == nil {
				_, err = w.Write(bytes.Repeat([]byte{b}, 1<<10))
			}
		}
		if err = errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		return packed.Bytes()
	}
	good := stream(1)
	damaged := append(slices.Clone(good), 0x28, 0xb5, 0x2f, 0xfd, 0, 0, 7, 0, 0) // a frame with a block of a reserved type
	d, err := NewDecompressor(NewMemory(1<<30, 1000))
	if err != nil {
		t.Fatal(err)
	}
	for _, reader := range []*Decompressor{d, d.Uncounted()} {
		for range 20 { // a pool may forget
			if out, err := reader.Decompress(good, kgo.CodecZstd); err != nil || len(out) != 1<<16 {
				t.Fatal(len(out), err)
			}
			if _, err := reader.Decompress(damaged, kgo.CodecZstd); err == nil {
				t.Fatal("a damaged batch is decompressed")
			}
			reader.release()
			seen := make(map[*byte]bool)
			for range 8 {
				b := d.again.GetDecompressBytes(nil, kgo.CodecZstd)
				if cap(b) == 0 {
					continue
				}
				if at := &b[:1][0]; seen[at] {
					t.Fatal("two readers decompress into the same memory")
				} else {
					seen[at] = true
				}
			}
		}
	}
}
