package kafkaadapter

import (
	"bytes"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// hands separates what the adapter reads from what the application's functions can change. The
// application gets its own structs and bytes: at the first attempt the bytes that the client has
// fetched, of which the adapter keeps a copy, and at each further attempt a copy of that copy. So a
// record that is handled once is copied once, into memory that is reused.
//
// The goroutine of the partition uses it. Another goroutine may again give a delivery that was
// given before.
type hands struct {
	kept  *buffer // the adapter's copies of the records that were popped last, see own; nil before the first copy
	loose buffer  // what the application gets
	lent  int64   // the application may have the fetched bytes of records before this offset
	spare []given
	rest  int // number of records that were popped last without memory yet
}

// buffers are shared by all partitions, so that few of them are in use and stay in the processor's
// caches.
var buffers = sync.Pool{New: func() any {
	b := &buffer{reused: true, first: make([]byte, 0, 4<<10)}
	b.copies = b.first
	return b
}}

// chunks has the memory of buffers.
var chunks = sync.Pool{New: func() any { return new(chunk) }}

type chunk [64 << 10]byte

// mostInChunk is the maximum size of a copy in a chunk; larger copies are allocated separately.
const mostInChunk = len(chunk{}) / 4

// begin starts with n new records of the given total size.
func (h *hands) begin(size int64, n int) {
	h.end()
	h.rest = n
	h.loose.piece = int(min(max(size, leastPiece), mostPiece))
	h.lent = math.MinInt64
}

// own returns the buffer for the adapter's copies.
func (h *hands) own() *buffer {
	if h.kept == nil {
		h.kept = buffers.Get().(*buffer)
	}
	return h.kept
}

// end releases the records, which are done.
func (h *hands) end() {
	if b := h.kept; b != nil {
		b.reset()
		buffers.Put(b)
	}
	h.kept, h.loose, h.spare = nil, buffer{}, nil
}

// give returns the current record of a delivery for the application.
func (h *hands) give(d *delivery) *Record {
	g, id := d.given, []byte(nil)
	if g == nil {
		g = h.newGiven()
		h.lend(d.Record, &g.raw)
		d.given, id = g, h.loose.bytes(d.Event.ID)
	} else {
		id = bytes.Clone(d.Event.ID)
	}
	rec := &g.Record
	rec.Record, rec.Event, rec.Event.ID = &g.raw, d.Event, id
	rec.Verdict, rec.Attempt, rec.Reopened, rec.Decoded = d.Verdict, d.Attempt, d.Reopened, d.decoded.value
	return rec
}

// newGiven returns memory for a given. It allocates memory for a few of the records that were
// popped last at a time, so one of them keeps the memory of the others in use.
func (h *hands) newGiven() *given {
	if len(h.spare) == 0 {
		h.spare = make([]given, max(1, min(h.rest, 32)))
		h.rest -= len(h.spare)
	}
	g := &h.spare[0]
	h.spare = h.spare[1:]
	return g
}

// lend sets out to a record for the application that is equal to rec, which remains the adapter's.
func (h *hands) lend(rec, out *kgo.Record) {
	*out = *rec
	if rec.Offset < h.lent {
		h.loose.keep(out)
		return
	}
	h.lent = rec.Offset + 1
	h.own().keep(rec)
}

// rules returns rules whose Payload function gets its own record.
func (h *hands) rules(rules identify.Rules) identify.Rules {
	if payload := rules.Payload; payload != nil {
		rules.Payload = func(rec *kgo.Record) ([]byte, time.Time, error) {
			lent := new(kgo.Record)
			h.lend(rec, lent)
			return payload(lent)
		}
	}
	return rules
}

// The sizes in bytes of the pieces of a buffer that is not reused. The application keeps a piece in
// memory if it keeps one of its records.
const (
	leastPiece = 512
	mostPiece  = 16 << 10
)

// A buffer has copies in a few large pieces of memory.
type buffer struct {
	reused  bool     // the memory is that of chunks
	first   []byte   // the memory before that of chunks; thousands of partitions may have a few records each at a time
	chunks  []*chunk // to be returned
	piece   int      // size of the next piece that is not a chunk
	copies  []byte
	headers []kgo.RecordHeader
}

// reset returns the memory of the copies, to which nothing refers any more.
func (b *buffer) reset() {
	for _, c := range b.chunks {
		chunks.Put(c)
	}
	clear(b.chunks)
	clear(b.headers)
	b.chunks, b.copies, b.headers = b.chunks[:0], b.first, b.headers[:0]
}

// keep replaces the memory of a record with copies.
func (b *buffer) keep(rec *kgo.Record) {
	rec.Key, rec.Value = b.bytes(rec.Key), b.bytes(rec.Value)
	n := len(rec.Headers)
	if n == 0 {
		return
	}
	if cap(b.headers)-len(b.headers) < n {
		more := 2 * cap(b.headers)
		if !b.reused {
			more = min(more, b.piece/64)
		}
		b.headers = make([]kgo.RecordHeader, 0, max(n, 8, more))
	}
	from := len(b.headers)
	for _, h := range rec.Headers {
		b.headers = append(b.headers, kgo.RecordHeader{Key: h.Key, Value: b.bytes(h.Value)})
	}
	rec.Headers = b.headers[from:len(b.headers):len(b.headers)]
}

// bytes returns a copy, which is nil if src is nil.
func (b *buffer) bytes(src []byte) []byte {
	if len(src) == 0 {
		return src[:0:0]
	}
	if cap(b.copies)-len(b.copies) < len(src) {
		if b.reused && len(src) > mostInChunk {
			return slices.Clip(bytes.Clone(src))
		}
		b.grow(len(src))
	}
	from := len(b.copies)
	b.copies = append(b.copies, src...)
	return b.copies[from:len(b.copies):len(b.copies)]
}

// grow makes room for n bytes.
func (b *buffer) grow(n int) {
	if !b.reused {
		b.copies = make([]byte, 0, max(n, b.piece))
		return
	}
	c := chunks.Get().(*chunk)
	b.chunks, b.copies = append(b.chunks, c), c[:0]
}
