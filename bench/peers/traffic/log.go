// Package traffic makes the events of a comparison: the same for every contender, with repeats, and
// with a known truth.
package traffic

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A Log is a sequence of N records, a share of which repeat earlier events: half of these an event
// of the last 10,000, half any of all history. Everything follows from its fields.
type Log struct {
	Seed     uint64
	N        int
	Dup      float64 // share of the records that repeat an event, from 0 to below 1
	Accounts int     // that payments are between; at least 2
}

// DefaultAccounts is the number of accounts that a comparison of consumers uses.
const DefaultAccounts = 50

const recentEvents = 10_000

// A Sequence is a Log that is read from its beginning. It belongs to one goroutine.
type Sequence struct {
	log      *Log
	position uint64
	events   uint64
}

// Begin returns the sequence of the log.
func (l *Log) Begin() *Sequence { return &Sequence{log: l} }

// Next returns the number of the next record's event, and whether the event is a repeat. Events are
// numbered as they appear.
func (s *Sequence) Next() (number uint64, repeat bool) {
	draw := mix(s.log.Seed ^ mix(s.position^0x7EA7))
	s.position++
	const parts = 1 << 20
	if s.events == 0 || draw%parts >= uint64(s.log.Dup*parts) {
		s.events++
		return s.events - 1, false
	}
	if back := mix(draw); back%2 == 0 {
		return s.events - 1 - back>>1%min(s.events, recentEvents), true
	}
	return mix(draw^1) % s.events, true
}

// Events is the number of distinct events so far.
func (s *Sequence) Events() uint64 { return s.events }

// ID is the id of an event, a random UUID.
func (l *Log) ID(number uint64) (id uuid.UUID) {
	h := mix(l.Seed ^ mix(number^0x1D))
	binary.BigEndian.PutUint64(id[:8], h)
	binary.BigEndian.PutUint64(id[8:], mix(h))
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// A Payment is the JSON of a record.
type Payment struct {
	Event     string `json:"event"`
	From      int    `json:"from"`
	To        int    `json:"to"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
	Reference string `json:"reference"`
}

// Payment returns what an event pays, without its reference.
func (l *Log) Payment(number uint64) Payment {
	h := mix(l.Seed ^ mix(number^0xACC7))
	n := uint64(max(l.Accounts, 2))
	from := h % n
	return Payment{
		Event: fmt.Sprintf("%016x", number), From: int(from), To: int((from + 1 + h>>32%(n-1)) % n),
		Amount: int64(h>>20%10_000) + 1, Currency: "EUR",
	}
}

// ValueBytes is the size of a record's value: the reference fills it up.
const ValueBytes = 200

func (l *Log) value(number uint64) []byte {
	p := l.Payment(number)
	v := make([]byte, 0, ValueBytes+16)
	v = fmt.Appendf(v, `{"event":"%s","from":%d,"to":%d,"amount":%d,"currency":%q,"reference":"`, p.Event, p.From, p.To, p.Amount, p.Currency)
	const end = `"}`
	var word [8]byte
	for h := mix(l.Seed ^ number); len(v) < ValueBytes-len(end); h = mix(h) {
		binary.BigEndian.PutUint64(word[:], h)
		v = hex.AppendEncode(v, word[:])
	}
	return append(v[:ValueBytes-len(end)], end...)
}

// Names of the headers with the id of the event, as text, and its time (RFC 3339). Hapax looks for
// both unasked.
const (
	IDHeader   = "message_id"
	TimeHeader = "event_time"
)

// Record makes the next record. One repeat in four has another key than its event had, so that
// copies of an event are in different partitions as well.
func (s *Sequence) Record(topic string, at time.Time) *kgo.Record {
	number, repeat := s.Next()
	key := mix(s.log.Seed ^ mix(number))
	if draw := mix(key ^ s.position); repeat && draw%4 == 0 {
		key = draw
	}
	return &kgo.Record{
		Topic: topic,
		Key:   strconv.AppendUint(nil, key, 36),
		Value: s.log.value(number),
		Headers: []kgo.RecordHeader{
			{Key: IDHeader, Value: []byte(s.log.ID(number).String())},
			{Key: TimeHeader, Value: at.UTC().AppendFormat(nil, time.RFC3339)},
		},
	}
}

// IDOf parses the id in a record's headers.
func IDOf(r *kgo.Record) (uuid.UUID, error) {
	for i := range r.Headers {
		if r.Headers[i].Key == IDHeader {
			return uuid.ParseBytes(r.Headers[i].Value)
		}
	}
	return uuid.UUID{}, fmt.Errorf("the record at offset %d of partition %d has no header %s", r.Offset, r.Partition, IDHeader)
}

// Truth returns the number of distinct events, and the balance of each account when each event has
// moved its amount once.
func (l *Log) Truth() (events uint64, balances map[int]int64) {
	balances = make(map[int]int64)
	s := l.Begin()
	for range l.N {
		if n, repeat := s.Next(); !repeat {
			p := l.Payment(n)
			balances[p.From] -= p.Amount
			balances[p.To] += p.Amount
		}
	}
	return s.events, balances
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, 2014).
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// Decode decodes the value of a record.
func Decode(value []byte) (p Payment, err error) {
	if err := json.Unmarshal(value, &p); err != nil {
		return p, fmt.Errorf("decoding a payment: %w", err)
	}
	return p, nil
}
