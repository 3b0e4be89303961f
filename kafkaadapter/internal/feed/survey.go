package feed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/internal/crc32c"
)

// A Survey is the result of a raw fetch of a part of a log: the offsets of the records that a
// consumer must see.
//
// Offsets have gaps where records were aborted or compacted. But there is also a gap if the client
// has skipped a batch whose header was damaged in transit: the checksum of a batch does not cover
// its offset. So each gap is checked by a separate fetch that is decoded here. The survey covers
// more than the gap, so that a compacted topic costs one additional fetch for each fetched part of the
// log, and not for each gap.
type Survey struct {
	from, to int64
	records  []int64 // ascending
}

// Explains reports whether the survey covers the gap from..to without finding a record in it.
func (s *Survey) Explains(from, to int64) bool {
	if from < s.from || to > s.to {
		return false
	}
	i, _ := slices.BinarySearch(s.records, from)
	return i == len(s.records) || s.records[i] >= to
}

// To is the offset at which the survey ends.
func (s *Survey) To() int64 { return s.to }

// NewSurvey decodes the log of a topic from an offset. Its batches are decompressed one after the other
// and not kept.
func NewSurvey(raw *kmsg.FetchResponseTopicPartition, topic string, offset int64, d *Decompressor) (Survey, error) {
	s := Survey{from: offset, to: offset}
	o := kgo.ProcessFetchPartitionOpts{IsolationLevel: kgo.ReadCommitted(), KeepControlRecords: true, Topic: topic, Partition: raw.Partition}
	d = d.Uncounted()
	defer d.release()
	one := *raw
	one.AbortedTransactions = slices.Clone(raw.AbortedTransactions)
	for rest := raw.RecordBatches; len(rest) > 0; {
		one.RecordBatches, rest = cutBatch(rest)
		if s.take(one.RecordBatches, d) {
			continue
		}
		o.Offset = s.to
		f, next := kgo.ProcessFetchPartition(o, &one, d, nil)
		if large := (*kgo.ErrDecompressTooLarge)(nil); errors.As(f.Err, &large) && large.Offset > offset {
			s.to = max(s.to, large.Offset) // there is nothing between them
			break
		}
		if f.Err != nil && s.to > offset {
			break // who wants to know what is there surveys it
		}
		if f.Err != nil {
			return Survey{}, f.Err
		}
		s.to = max(s.to, next)
		for _, r := range f.Records {
			if r.Attrs.IsControl() {
				ended(&one, r)
			} else {
				s.records = append(s.records, r.Offset)
			}
		}
	}
	if s.to <= offset {
		return Survey{}, fmt.Errorf("the broker returned nothing from offset %d", offset)
	}
	return s, nil
}

// take adds the offsets of a batch that belongs to no transaction. It takes none and returns false if the client's
// own rules must decide what is in the batch: also where anything about it is wrong.
func (s *Survey) take(b []byte, d *Decompressor) bool {
	const head, crcEnd, transactionalOrControl = 12, 21, 3 << 4
	var batch kmsg.RecordBatch
	if err := batch.ReadFrom(b); err != nil || batch.Magic != 2 || batch.Attributes&transactionalOrControl != 0 ||
		head+int(batch.Length) != len(b) || batch.CRC != int32(crc32c.Checksum(b[crcEnd:])) || batch.FirstOffset < 0 || batch.NumRecords < 0 {
		return false
	}
	in, err := d.Decompress(batch.Records, kgo.CompressionCodecType(batch.Attributes&7))
	if err != nil {
		return false
	}
	records, before := s.records, int64(-1)
	for range batch.NumRecords {
		delta, size := offsetDelta(in)
		if size == 0 || delta <= before || delta > int64(batch.LastOffsetDelta) {
			return false
		}
		in, before = in[size:], delta
		if at := batch.FirstOffset + delta; at >= s.to {
			records = append(records, at)
		}
	}
	s.records, s.to = records, max(s.to, batch.FirstOffset+int64(batch.LastOffsetDelta)+1)
	return true
}

// offsetDelta returns the distance of the first record's offset from that of its batch, and the record's size. The
// size is 0 if the record is damaged.
func offsetDelta(in []byte) (delta int64, size int) {
	length, used := binary.Varint(in)
	if used <= 0 || length < 1 || length > int64(len(in)-used) {
		return 0, 0
	}
	size = used + int(length)
	rest := in[used+1 : size] // without the attributes, which are not used
	if _, used = binary.Varint(rest); used <= 0 {
		return 0, 0 // the time
	}
	if delta, used = binary.Varint(rest[used:]); used <= 0 {
		return 0, 0
	}
	return delta, size
}

// cutBatch returns the first batch of a part of the log, and the rest. A part of a batch is all that is left.
func cutBatch(b []byte) (batch, rest []byte) {
	const head = 12 // the first offset, and the length of what follows
	if len(b) >= head {
		if n := head + int64(binary.BigEndian.Uint32(b[8:])); n < int64(len(b)) {
			return b[:n], b[n:]
		}
	}
	return b, nil
}

// ended removes the first aborted transaction of a producer from those that are to come, if a control
// record is the marker of its end.
func ended(raw *kmsg.FetchResponseTopicPartition, r *kgo.Record) {
	if len(r.Key) < 4 || r.Key[2] != 0 || r.Key[3] != 0 {
		return // a commit
	}
	first := -1
	for i := range raw.AbortedTransactions {
		a := &raw.AbortedTransactions[i]
		if a.ProducerID == r.ProducerID && a.FirstOffset <= r.Offset && (first < 0 || a.FirstOffset < raw.AbortedTransactions[first].FirstOffset) {
			first = i
		}
	}
	if first >= 0 {
		raw.AbortedTransactions = slices.Delete(raw.AbortedTransactions, first, first+1)
	}
}
