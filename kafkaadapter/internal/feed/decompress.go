package feed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A Decompressor bounds the memory of decompressed records. A few kilobytes can decompress to
// gigabytes, and a client decompresses all that a broker has sent before it is polled.
//
// A batch of the log whose records need more than the whole memory is too large: the client stops the
// partition with kgo.ErrDecompressTooLarge. Once the memory is used up, the client keeps what it has
// and fetches the rest again after the next poll.
type Decompressor struct {
	inner  kgo.Decompressor // returns kgo.ErrMaxDecompress above the limit
	most   int64
	memory *Memory // nil if it does not count

	again *buffers
	last  []byte // of again: used by the last batch; nil if memory counts
}

// ErrFull means that the memory is used up: the rest is fetched again.
var ErrFull = errors.New("hapax: the fetched records reach MaxBufferedBytes; the rest is fetched again")

// NewDecompressor returns the decompressor of a client whose records are counted by m.
func NewDecompressor(m *Memory) (*Decompressor, error) {
	inner, err := newInner(m.most)
	if err != nil {
		return nil, err
	}
	again := &buffers{}
	if again.inner, err = newInner(m.most, kgo.WithPools(again)); err != nil {
		return nil, err
	}
	return &Decompressor{inner: inner, most: m.most, memory: m, again: again}, nil
}

// newInner returns a decompressor with a limit. Only a client makes one.
func newInner(most int64, opts ...kgo.Opt) (kgo.Decompressor, error) {
	client, err := kgo.NewClient(append(opts, kgo.MaxDecompressBatchBytes(int(min(most, math.MaxInt32))))...)
	if err != nil {
		return nil, fmt.Errorf("hapax: making a Kafka client: %w", err)
	}
	defer client.CloseAllowingRebalance()
	inner, ok := client.OptValue(kgo.WithDecompressor).(kgo.Decompressor)
	if !ok {
		return nil, errors.New("hapax: the Kafka client has no decompressor: use the version of franz-go in go.mod")
	}
	return inner, nil
}

// Uncounted returns a decompressor with the same limit for a batch, for a reader that keeps no
// records: it decompresses each batch into the memory of the one before. Call release in the end.
func (d *Decompressor) Uncounted() *Decompressor {
	return &Decompressor{most: d.most, again: d.again}
}

func (d *Decompressor) release() {
	if d.last != nil {
		d.again.PutDecompressBytes(d.last)
		d.last = nil
	}
}

// buffers are memory to decompress into, when the result is copied or not kept. What brokers and Java clients
// compress with zstd does not say how large it becomes, so that a new buffer would grow again and again.
type buffers struct {
	inner kgo.Decompressor // uses them
	pool  sync.Pool
}

var _ kgo.PoolDecompressBytes = (*buffers)(nil)

// GetDecompressBytes and PutDecompressBytes are for the inner decompressor.
func (b *buffers) GetDecompressBytes([]byte, kgo.CompressionCodecType) []byte {
	if got, ok := b.pool.Get().(*[]byte); ok {
		return *got
	}
	return nil
}

func (b *buffers) PutDecompressBytes(buf []byte) {
	if buf = buf[:0]; cap(buf) > 0 {
		b.pool.Put(&buf)
	}
}

// Decompress is for the client.
func (d *Decompressor) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if codec == kgo.CodecNone {
		return src, nil
	}
	if d.memory != nil && d.memory.refuses() {
		return nil, ErrFull
	}
	d.release()
	out, err := d.decompress(src, codec)
	if err != nil {
		return nil, err
	}
	if int64(len(out))+recordMemory*countRecords(out) > d.most {
		return nil, kgo.ErrMaxDecompress
	}
	return out, nil
}

func (d *Decompressor) decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if d.memory != nil && (codec != kgo.CodecZstd || tellsSize(src)) {
		return d.inner.Decompress(src, codec)
	}
	out, err := d.again.inner.Decompress(src, codec)
	if err != nil {
		return nil, err // the inner one has put the memory back; out may still be in it
	}
	if d.memory == nil {
		d.last = out
		return out, nil
	}
	kept := slices.Clone(out)
	d.again.PutDecompressBytes(out)
	return kept, nil
}

// tellsSize reports whether the header of a frame of zstd has its decompressed size.
func tellsSize(src []byte) bool { return len(src) > 4 && src[4]>>5 != 0 }

// countRecords counts the records of a decompressed batch.
func countRecords(b []byte) (n int64) {
	for len(b) > 0 {
		length, used := binary.Varint(b)
		if used <= 0 || length < 0 || length > int64(len(b)-used) {
			return n + 1 // the client rejects it
		}
		b = b[used+int(length):]
		n++
	}
	return n
}
