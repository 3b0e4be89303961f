package feed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

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
}

// ErrFull means that the memory is used up: the rest is fetched again.
var ErrFull = errors.New("hapax: the fetched records reach MaxBufferedBytes; the rest is fetched again")

// NewDecompressor returns the decompressor of a client whose records are counted by m.
func NewDecompressor(m *Memory) (*Decompressor, error) {
	// Only a client makes one with a limit.
	client, err := kgo.NewClient(kgo.MaxDecompressBatchBytes(int(min(m.most, math.MaxInt32))))
	if err != nil {
		return nil, fmt.Errorf("hapax: making a Kafka client: %w", err)
	}
	defer client.CloseAllowingRebalance()
	inner, ok := client.OptValue(kgo.WithDecompressor).(kgo.Decompressor)
	if !ok {
		return nil, errors.New("hapax: the Kafka client has no decompressor: use the version of franz-go in go.mod")
	}
	return &Decompressor{inner: inner, most: m.most, memory: m}, nil
}

// Uncounted returns a decompressor with the same limit for a batch, for a reader that keeps no
// records.
func (d *Decompressor) Uncounted() *Decompressor {
	return &Decompressor{inner: d.inner, most: d.most}
}

// Decompress is for the client.
func (d *Decompressor) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if codec == kgo.CodecNone {
		return src, nil
	}
	if d.memory != nil && d.memory.refuses() {
		return nil, ErrFull
	}
	out, err := d.inner.Decompress(src, codec)
	if err != nil {
		return nil, err
	}
	if int64(len(out))+recordMemory*countRecords(out) > d.most {
		return nil, kgo.ErrMaxDecompress
	}
	return out, nil
}

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
