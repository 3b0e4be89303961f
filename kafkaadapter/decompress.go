package kafkaadapter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A decompressor bounds the memory of decompressed records in the client. A few kilobytes can
// decompress to gigabytes, and the client decompresses all that a broker has sent before it is
// polled.
//
// A batch whose records need more than the limit is too large: the client stops the partition with
// kgo.ErrDecompressTooLarge. Once batches have reached the limit together, the client keeps what it
// has and fetches the rest again after the next poll, which takes it.
type decompressor struct {
	inner kgo.Decompressor // returns kgo.ErrMaxDecompress above the limit
	most  int64

	mu          sync.Mutex // guards the rest
	before, now int64      // bytes of records decompressed before and after the last poll
}

// errFull means that the client has enough decompressed records. It is not logged.
var errFull = errors.New("hapax: the decompressed records reach Batching.MaxBufferedBytes; the rest is fetched again")

// newDecompressor returns a decompressor that bounds a batch, and all of them between two polls, to
// the given number of bytes.
func newDecompressor(most int64) (*decompressor, error) {
	// Only a client makes one with a limit.
	client, err := kgo.NewClient(kgo.MaxDecompressBatchBytes(int(min(most, math.MaxInt32))))
	if err != nil {
		return nil, fmt.Errorf("hapax: making a Kafka client: %w", err)
	}
	defer client.CloseAllowingRebalance()
	inner, ok := client.OptValue(kgo.WithDecompressor).(kgo.Decompressor)
	if !ok {
		return nil, errors.New("hapax: the Kafka client has no decompressor: use the version of franz-go in go.mod")
	}
	return &decompressor{inner: inner, most: most}, nil
}

// fresh returns a decompressor with the same limit, for another reader.
func (d *decompressor) fresh() *decompressor { return &decompressor{inner: d.inner, most: d.most} }

func (d *decompressor) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if codec == kgo.CodecNone {
		return src, nil
	}
	if d.isFull() {
		return nil, errFull
	}
	out, err := d.inner.Decompress(src, codec)
	if err != nil {
		return nil, err
	}
	bytes := int64(len(out)) + recordMemory*countRecords(out)
	if bytes > d.most {
		return nil, kgo.ErrMaxDecompress
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now += bytes
	return out, nil
}

func (d *decompressor) isFull() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.before+d.now >= d.most
}

// polled records that the client's records were taken. Those of a response that is still being
// decompressed were not.
func (d *decompressor) polled() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before, d.now = d.now, 0
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
