package feed

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestSurveyExplainsWhatItCovers(t *testing.T) {
	s := Survey{from: 10, to: 20, records: []int64{12, 15}}
	for _, tt := range []struct {
		from, to int64
		want     bool
	}{{10, 12, true}, {13, 15, true}, {16, 20, true}, {10, 13, false}, {12, 13, false}, {9, 11, false}, {16, 21, false}} {
		if got := s.Explains(tt.from, tt.to); got != tt.want {
			t.Errorf("%d to %d: %v", tt.from, tt.to, got)
		}
	}
}

// In a compacted topic each record follows a gap. If each gap took a look at all records, this would
// not end.
func TestSurveyOfManyGapsIsNotQuadratic(t *testing.T) {
	const n = 1 << 21
	s := Survey{to: 2 * n}
	for i := range int64(n) {
		s.records = append(s.records, 2*i+1)
	}
	for i := range int64(n) {
		if !s.Explains(2*i, 2*i+1) {
			t.Fatalf("the gap at %d is not explained", 2*i)
		}
	}
}

// batch appends a batch with records at the given deltas from its first offset. Transactional ones are
// those of producer 7; one that ends a transaction has a control record.
func batch(b []byte, first int64, last int32, attributes int16, key []byte, deltas ...int64) []byte {
	var recs []byte
	for _, delta := range deltas {
		rec := binary.AppendVarint(binary.AppendVarint([]byte{0}, 0), delta)
		rec = append(binary.AppendVarint(rec, int64(len(key))), key...)
		rec = append(binary.AppendVarint(rec, 1), 'v', 0)
		recs = append(binary.AppendVarint(recs, int64(len(rec))), rec...)
	}
	if attributes&7 == int16(kgo.CodecZstd) {
		w, _ := zstd.NewWriter(nil)
		recs = w.EncodeAll(recs, nil)
	}
	rb := kmsg.RecordBatch{
		FirstOffset: first, Magic: 2, Attributes: attributes, LastOffsetDelta: last, ProducerID: 7, NumRecords: int32(len(deltas)), Records: recs,
	}
	rb.Length = int32(len(rb.AppendTo(nil)) - 12)
	raw := rb.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return append(b, raw...)
}

// counting counts what is decompressed.
type counting struct {
	kgo.Decompressor
	batches int
}

func (c *counting) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if codec != kgo.CodecNone {
		c.batches++
	}
	return c.Decompressor.Decompress(src, codec)
}

func TestSurveyDecompressesEachBatchOnce(t *testing.T) {
	const plain, transactional, control = 0, 1 << 4, 1<<4 | 1<<5
	zstd := int16(kgo.CodecZstd)
	abort, commit := []byte{0, 0, 0, 0}, []byte{0, 0, 0, 1}
	var log []byte
	log = batch(log, 0, 9, zstd, nil, 0, 3, 9)
	log = batch(log, 10, 9, transactional|zstd, nil, 0, 1) // aborted
	log = batch(log, 20, 0, control, abort, 0)
	log = batch(log, 21, 3, transactional|zstd, nil, 2) // committed
	log = batch(log, 25, 0, control, commit, 0)
	log = batch(log, 26, 9, transactional|zstd, nil, 5) // aborted
	log = batch(log, 36, 0, control, abort, 0)
	log = batch(log, 40, 2, plain, nil, 1)
	whole := len(log)
	log = batch(log, 43, 0, zstd, nil, 0)
	raw := &kmsg.FetchResponseTopicPartition{
		RecordBatches: log[:whole+30], // the last one is torn
		AbortedTransactions: []kmsg.FetchResponseTopicPartitionAbortedTransaction{
			{ProducerID: 7, FirstOffset: 26}, {ProducerID: 7, FirstOffset: 10}, {ProducerID: 8, FirstOffset: 0},
		},
	}
	d, err := NewDecompressor(NewMemory(1<<20, 1000))
	if err != nil {
		t.Fatal(err)
	}
	c := &counting{Decompressor: d.again.inner}
	d.again.inner = c
	d.memory.hold(1 << 30) // what is surveyed is not kept
	s, err := NewSurvey(raw, "in", 1, d)
	if want := []int64{3, 9, 23, 41}; err != nil || s.from != 1 || s.to != 43 || !slices.Equal(s.records, want) {
		t.Errorf("%+v, %v; want records %v", s, err, want)
	}
	if c.batches != 4 {
		t.Errorf("%d batches were decompressed", c.batches)
	}
	if len(raw.AbortedTransactions) != 3 {
		t.Error("the answer of the broker was changed")
	}
	if _, err := NewSurvey(&kmsg.FetchResponseTopicPartition{}, "in", 1, d); err == nil {
		t.Error("a survey of nothing")
	}
}

// The offsets that are read here are those that the client reads, whatever the bytes of a batch are. Only where the
// client stops at a record that is damaged may there be more.
func TestSurveyReadsWhatTheClientReads(t *testing.T) {
	d, err := NewDecompressor(NewMemory(1<<20, 1000))
	if err != nil {
		t.Fatal(err)
	}
	whole := batch(nil, 10, 9, int16(kgo.CodecZstd), []byte("key"), 0, 3, 9)
	plain := batch(nil, 10, 9, 0, []byte("key"), 0, 3, 9)
	check := func(b []byte, from int64) (taken bool) {
		o := kgo.ProcessFetchPartitionOpts{Offset: from, IsolationLevel: kgo.ReadCommitted(), KeepControlRecords: true}
		f, next := kgo.ProcessFetchPartition(o, &kmsg.FetchResponseTopicPartition{RecordBatches: b}, d.Uncounted(), nil)
		s := Survey{from: from, to: from}
		if !s.take(b, d.Uncounted()) {
			if s.to != from || s.records != nil {
				t.Fatalf("%x: not taken, but %+v", b, s)
			}
			return false
		}
		var want []int64
		for _, r := range f.Records {
			want = append(want, r.Offset)
		}
		if f.Err != nil || s.to < next || len(s.records) < len(want) || !slices.Equal(s.records[:len(want)], want) || s.to == next && len(s.records) > len(want) {
			t.Fatalf("%x from %d: %+v, but the client reads %v up to %d, %v", b, from, s, want, next, f.Err)
		}
		return true
	}
	for from := range int64(25) {
		if !check(whole, from) || !check(plain, from) {
			t.Errorf("a batch is not taken from offset %d", from)
		}
	}
	if check(batch(nil, 10, 9, 1<<4, nil, 0), 10) || check(batch(nil, 10, 0, 3<<4, []byte{0, 0, 0, 1}, 0), 10) {
		t.Error("a batch of a transaction is taken")
	}
	taken := 0
	for _, b := range [][]byte{whole, plain} {
		for i := range b {
			for bit := range 8 {
				damaged := slices.Clone(b)
				damaged[i] ^= 1 << bit
				check(damaged, 10)
				if i < 21 { // the checksum of the rest is right again
					continue
				}
				binary.BigEndian.PutUint32(damaged[17:], crc32.Checksum(damaged[21:], crc32.MakeTable(crc32.Castagnoli)))
				if check(damaged, 10) {
					taken++
				}
			}
		}
	}
	if taken == 0 {
		t.Error("no batch was changed and taken")
	}
}

func BenchmarkSurvey(b *testing.B) {
	d, err := NewDecompressor(NewMemory(1<<30, 1000))
	if err != nil {
		b.Fatal(err)
	}
	var log []byte
	var deltas []int64
	for i := range int64(500) {
		deltas = append(deltas, 2*i+1)
	}
	for i := range int64(40) {
		log = batch(log, i*1000, 999, int16(kgo.CodecZstd), []byte("a key of some length"), deltas...)
	}
	raw := &kmsg.FetchResponseTopicPartition{RecordBatches: log}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NewSurvey(raw, "in", 0, d); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/20000, "ns/record")
}
