package replica

import (
	"bytes"
	"encoding/binary"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/decode"
	"github.com/zeebo/xxh3"
)

// The body of a batch has its claims in columns, because those of one batch are alike:
//
//	+---------+---------------+------------------------------------+----------------+------------+---------+
//	| flags 1 | states uvarint| key bytes, value bytes or none ... | claims uvarint | runs ...   | journal |
//	+---------+---------------+------------------------------------+----------------+------------+---------+
//	run:     | count uvarint | prefix bytes | form 1 | ... |
//	form 0:  | tail bytes, record bytes or none | count times
//	form 1:  | topic 1 | partition uvarint | tail size uvarint | tails | offset varints | times |
//	times:   | count uvarint, milliseconds varint | until all claims have one
//	journal: | 0 | bytes |   or   | 1 | scope uvarint for each group of claims |
//
// Bytes have their length before them, in front of a value or record that may be none their length
// plus 1. A run has claims whose keys begin with one prefix. Form 1 is for records in the engine's
// short form that differ in offset and time only; both are the difference to the one before. The
// hashes of the journal are left out if it is what the claims say: see journalOf.
const (
	flagControl = 1

	formRows    = 0
	formColumns = 1

	journalBytes   = 0
	journalDerived = 1

	maxGroups = 64 // of claims in a journal

	// maxPrefix bounds what a short tail may become.
	maxPrefix = 65
)

// appendBody appends a batch, without its number.
func appendBody(dst []byte, b *storage.Batch, seed uint64) []byte {
	flags := byte(0)
	if b.Control {
		flags |= flagControl
	}
	dst = binary.AppendUvarint(append(dst, flags), uint64(len(b.State)))
	for i := range b.State {
		dst = appendOptional(appendBytes(dst, b.State[i].Key), b.State[i].Value)
	}
	dst = binary.AppendUvarint(dst, uint64(len(b.Claims)))
	for claims := b.Claims; len(claims) > 0; {
		prefix, n := firstRun(claims)
		dst = appendBytes(binary.AppendUvarint(dst, uint64(n)), prefix)
		dst = appendRun(dst, claims[:n], len(prefix))
		claims = claims[n:]
	}
	return appendJournal(dst, b, seed)
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

func appendOptional(dst, b []byte) []byte {
	if b == nil {
		return append(dst, 0)
	}
	return append(binary.AppendUvarint(dst, uint64(len(b))+1), b...)
}

// bucketPrefix returns the part of a claim's key before the id: all of it if it has no end.
func bucketPrefix(key []byte) []byte {
	for i := 0; i+1 < len(key); i++ {
		if key[i] != 0 {
			continue
		}
		if key[i+1] == 1 {
			return key[:min(i+6, len(key))]
		}
		i++
	}
	return key
}

// firstRun returns the common prefix of the first claims, and how many have it: those of a bucket, with
// the tag of the ids if all of them have the same.
func firstRun(claims []storage.ClaimWrite) (prefix []byte, n int) {
	key := claims[0].Key
	prefix = bucketPrefix(key)
	if len(prefix) >= maxPrefix {
		prefix = nil
	}
	tagged := key[:min(len(prefix)+1, len(key))]
	same := true
	for n = 1; n < len(claims) && bytes.HasPrefix(claims[n].Key, prefix); n++ {
		same = same && bytes.HasPrefix(claims[n].Key, tagged)
	}
	if same {
		prefix = tagged
	}
	return prefix, n
}

// A shortRecord is a record in the engine's short form.
type shortRecord struct {
	topic     byte
	partition uint64
	ms        uint64
	offset    uint64
}

const shortTime = 5 // bytes

// parseShort returns false if the record is in another form.
func parseShort(record []byte) (s shortRecord, ok bool) {
	d := decode.Decoder{Rest: record}
	s.topic, s.partition = d.Byte(), d.Uvarint()
	for _, b := range d.Take(shortTime) {
		s.ms = s.ms<<8 | uint64(b)
	}
	s.offset = d.Uvarint()
	return s, !d.Bad && len(d.Rest) == 0 && s.topic >= 0x80
}

func (s *shortRecord) appendTo(dst []byte) []byte {
	dst = binary.AppendUvarint(append(dst, s.topic), s.partition)
	dst = append(dst, byte(s.ms>>32), byte(s.ms>>24), byte(s.ms>>16), byte(s.ms>>8), byte(s.ms))
	return binary.AppendUvarint(dst, s.offset)
}

// appendRun appends claims whose keys have a prefix of that size.
func appendRun(dst []byte, claims []storage.ClaimWrite, prefix int) []byte {
	first, ok := parseShort(claims[0].Record)
	tail := len(claims[0].Key) - prefix
	for i := 1; ok && i < len(claims); i++ {
		var s shortRecord
		s, ok = parseShort(claims[i].Record)
		ok = ok && s.topic == first.topic && s.partition == first.partition && len(claims[i].Key)-prefix == tail
	}
	if !ok {
		dst = append(dst, formRows)
		for i := range claims {
			dst = appendOptional(appendBytes(dst, claims[i].Key[prefix:]), claims[i].Record)
		}
		return dst
	}
	dst = append(dst, formColumns, first.topic)
	dst = binary.AppendUvarint(dst, first.partition)
	dst = binary.AppendUvarint(dst, uint64(tail))
	for i := range claims {
		dst = append(dst, claims[i].Key[prefix:]...)
	}
	var last shortRecord
	for i := range claims {
		s, _ := parseShort(claims[i].Record)
		dst = binary.AppendVarint(dst, int64(s.offset-last.offset))
		last.offset = s.offset
	}
	for i := 0; i < len(claims); {
		s, _ := parseShort(claims[i].Record)
		n := 1
		for ; i+n < len(claims); n++ {
			if next, _ := parseShort(claims[i+n].Record); next.ms != s.ms {
				break
			}
		}
		dst = binary.AppendUvarint(dst, uint64(n))
		dst = binary.AppendVarint(dst, int64(s.ms-last.ms))
		last.ms = s.ms
		i += n
	}
	return dst
}

// appendJournal appends the journal entry, of which nothing but the numbers of the scopes is needed if
// it is the one that the claims give.
func appendJournal(dst []byte, b *storage.Batch, seed uint64) []byte {
	if len(b.Claims) > 0 {
		if scopes, ok := journalScopes(b.Journal); ok && bytes.Equal(journalOf(b.Claims, seed, func() uint64 { return take(&scopes) }), b.Journal) {
			scopes, _ = journalScopes(b.Journal)
			dst = append(dst, journalDerived)
			for _, scope := range scopes {
				dst = binary.AppendUvarint(dst, scope)
			}
			return dst
		}
	}
	return appendBytes(append(dst, journalBytes), b.Journal)
}

func take(numbers *[]uint64) (n uint64) {
	if len(*numbers) > 0 {
		n, *numbers = (*numbers)[0], (*numbers)[1:]
	}
	return n
}

// journalScopes returns the numbers of the scopes of a journal entry, of each of its runs.
func journalScopes(entry []byte) (scopes []uint64, ok bool) {
	d := decode.Decoder{Rest: entry}
	for len(d.Rest) > 0 && !d.Bad {
		n := d.Count(8)
		scopes = append(scopes, d.Uvarint())
		d.Take(5 + 8*uint64(n))
	}
	return scopes, !d.Bad
}

// journalOf returns the engine's journal entry of a batch whose claims are all new or removed: a run
// for each bucket and each of the two, in the order in which they first occur, with the hashes of the
// claims in their order. scope returns the number of the scope of the next run. It returns nil for
// claims of more buckets than a usual batch has.
func journalOf(claims []storage.ClaimWrite, seed uint64, scope func() uint64) []byte {
	type group struct {
		prefix []byte
		sign   byte
		hashes []byte
	}
	var groups []group
	at := 0
	for i := range claims {
		prefix, sign := bucketPrefix(claims[i].Key), byte(1)
		if claims[i].Record == nil {
			sign = 0
		}
		is := func(g *group) bool { return g.sign == sign && bytes.Equal(g.prefix, prefix) }
		if at >= len(groups) || !is(&groups[at]) {
			for at = 0; at < len(groups) && !is(&groups[at]); at++ {
			}
			if at == len(groups) {
				if at == maxGroups {
					return nil
				}
				groups = append(groups, group{prefix: prefix, sign: sign})
			}
		}
		g := &groups[at]
		g.hashes = binary.BigEndian.AppendUint64(g.hashes, xxh3.HashSeed(claims[i].Key, seed))
	}
	var entry []byte
	for i := range groups {
		g := &groups[i]
		entry = binary.AppendUvarint(entry, uint64(len(g.hashes)/8))
		entry = binary.AppendUvarint(entry, scope())
		entry = append(entry, g.prefix[max(len(g.prefix)-4, 0):]...)
		entry = append(append(entry, g.sign), g.hashes...)
	}
	return entry
}

// A bodyReader reads bodies, into memory that it uses again.
type bodyReader struct {
	batch storage.Batch
	arena []byte
}

// read returns the batch in a body, which is valid until the next call and shares memory with body.
func (r *bodyReader) read(body []byte, seed uint64) (*storage.Batch, error) {
	b := &r.batch
	b.Claims, b.State, r.arena = b.Claims[:0], b.State[:0], r.arena[:0]
	d := decode.Decoder{Rest: body}
	flags := d.Byte()
	b.Control = flags&flagControl != 0
	for n := d.Count(2); n > 0 && !d.Bad; n-- {
		b.State = append(b.State, storage.StateWrite{Key: d.Bytes(), Value: d.Optional()})
	}
	for left := d.Count(1); left > 0 && !d.Bad; {
		n := d.Count(1)
		if n == 0 || n > left {
			d.Bad = true
			break
		}
		left -= n
		r.run(&d, n)
	}
	switch d.Byte() {
	case journalBytes:
		b.Journal = d.Bytes()
	case journalDerived:
		b.Journal = journalOf(b.Claims, seed, d.Uvarint)
	default:
		d.Bad = true
	}
	if d.Bad || len(d.Rest) > 0 || flags&^flagControl != 0 {
		return nil, damaged("a batch of %d bytes is malformed", len(body))
	}
	return b, nil
}

// run reads n claims.
func (r *bodyReader) run(d *decode.Decoder, n int) {
	prefix := d.Bytes()
	d.Bad = d.Bad || len(prefix) > maxPrefix
	switch d.Byte() {
	case formRows:
		for ; n > 0 && !d.Bad; n-- {
			r.claim(prefix, d.Bytes(), d.Optional())
		}
	case formColumns:
		r.columns(d, n, prefix)
	default:
		d.Bad = true
	}
}

func (r *bodyReader) columns(d *decode.Decoder, n int, prefix []byte) {
	s := shortRecord{topic: d.Byte(), partition: d.Uvarint()}
	size := d.Uvarint()
	if size > uint64(len(d.Rest)) {
		d.Bad = true
		return
	}
	tails := d.Take(uint64(n) * size)
	offsets := *d
	for i := 0; i < n && !d.Bad; i++ {
		d.Varint()
	}
	for n > 0 && !d.Bad {
		same := d.Uvarint()
		s.ms += uint64(d.Varint())
		if same == 0 || same > uint64(n) {
			d.Bad = true
			return
		}
		n -= int(same)
		for ; same > 0 && !d.Bad; same-- {
			s.offset += uint64(offsets.Varint())
			at := len(r.arena)
			r.arena = s.appendTo(r.arena)
			r.claim(prefix, tails[:size], r.arena[at:len(r.arena):len(r.arena)])
			tails = tails[size:]
		}
	}
}

func (r *bodyReader) claim(prefix, tail, record []byte) {
	at := len(r.arena)
	r.arena = append(append(r.arena, prefix...), tail...)
	r.batch.Claims = append(r.batch.Claims, storage.ClaimWrite{Key: r.arena[at:len(r.arena):len(r.arena)], Record: record})
}
