package traffic

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// A Log is the data that a run produces: N records, a share of which repeat earlier events. Half of
// the repeats are of one of the last 10,000 events, and many of these are in one batch of a
// consumer. The other half repeat any earlier event. One repeat in four has another key than its
// event, and so usually another partition.
//
// Everything depends only on the seed, the log and the position. Events are numbered as they
// appear.
type Log struct {
	Source   Source
	N        int
	Dup      float64 // share of the records that repeat an event
	Recent   uint64  // how far back the recent repeats reach; 0 = recentWindow
	Accounts int     // the number of accounts of the payments; 0 = 2
}

// A Sequence is a Log that is being read from its beginning.
type Sequence struct {
	numbers Numbers
	log     *Log
}

// Begin returns the sequence of the log.
func (l *Log) Begin() *Sequence {
	return &Sequence{Numbers{Seed: l.Source.Seed, Share: l.Dup, Recent: l.Recent}, l}
}

// Next returns the number of the next record's event, and whether it is a repeat.
func (s *Sequence) Next() (number uint64, repeat bool) { return s.numbers.Next() }

// Distinct is the number of distinct events so far.
func (s *Sequence) Distinct() uint64 { return s.numbers.Distinct() }

// Limit is greater than the number of each event.
func (l *Log) Limit() uint64 { return uint64(l.N) }

// Each calls fn with the number of each event of the log, once.
func (l *Log) Each(fn func(number uint64) error) error {
	s := l.Begin()
	for range l.N {
		if n, repeat := s.Next(); !repeat {
			if err := fn(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// Truth returns the number of distinct events, and the balance of each account after each event has
// moved its amount once.
func (l *Log) Truth() (events uint64, balances map[int]int64) {
	balances = make(map[int]int64)
	_ = l.Each(func(n uint64) error {
		events++
		p := l.Payment(n)
		balances[p.From] -= p.Amount
		balances[p.To] += p.Amount
		return nil
	})
	return events, balances
}

// A Deal is a log that is read without a broker. Its records are distributed to the partitions in
// turn.
type Deal struct {
	log     *Log
	numbers []uint32 // nil: no record repeats another
	parts   uint64
	Ends    uint64 // records of a partition
}

// Deal numbers all records of the log.
func (l *Log) Deal(parts int) Deal {
	d := Deal{log: l, parts: uint64(parts), Ends: uint64(l.N / parts)}
	if l.Dup == 0 {
		return d
	}
	d.numbers = make([]uint32, l.N)
	s := l.Begin()
	for i := range d.numbers {
		n, _ := s.Next()
		d.numbers[i] = uint32(n)
	}
	return d
}

// Number returns the number of the event at a position of a partition.
func (d *Deal) Number(p int, at uint64) uint64 {
	i := at*d.parts + uint64(p)
	if d.numbers == nil {
		return i
	}
	return uint64(d.numbers[i])
}

// Events returns n events of a partition, from a position on, and their numbers.
func (d *Deal) Events(p int, at, n uint64) (numbers []uint64, events []engine.Event) {
	numbers, events = make([]uint64, n), make([]engine.Event, n)
	arena := make([]byte, 0, 40*n)
	for i := range numbers {
		numbers[i] = d.Number(p, at+uint64(i))
		events[i], arena = d.log.Source.Event(numbers[i], arena)
		events[i].Origin.Partition = int32(p)
	}
	return numbers, events
}

// The id and the time of a record are in headers that the adapter reads by default; its value is
// the JSON of a payment.
const (
	IDHeader   = "message_id"
	TimeHeader = "event_time"
)

// Record makes the next record.
func (s *Sequence) Record(topic string) *kgo.Record {
	number, repeat := s.Next()
	ev, _ := s.log.Source.Event(number, make([]byte, 0, 36))
	key := Mix(s.log.Source.Seed ^ Mix(number))
	if draw := Mix(key ^ s.numbers.position); repeat && draw%4 == 0 {
		key = draw
	}
	return &kgo.Record{
		Topic: topic,
		Key:   strconv.AppendUint(nil, key, 36),
		Value: s.log.Value(number),
		Headers: []kgo.RecordHeader{
			{Key: IDHeader, Value: ev.ID},
			{Key: TimeHeader, Value: ev.Time.AppendFormat(nil, time.RFC3339Nano)},
		},
	}
}

// NumberOf returns the number of a record's event, which is below limit. It does not decode the
// rest of the value.
func NumberOf(r *kgo.Record, limit uint64) (uint64, error) {
	if n, ok := NumberIn(r.Value, limit); ok {
		return n, nil
	}
	return 0, fmt.Errorf("%s/%d has a record at %d that was not produced by this run", r.Topic, r.Partition, r.Offset)
}

// NumberIn is NumberOf for the value of a record.
func NumberIn(value []byte, limit uint64) (uint64, bool) {
	digits, ok := bytes.CutPrefix(value, []byte(eventPrefix))
	if !ok || len(value) != ValueBytes {
		return 0, false
	}
	n, err := strconv.ParseUint(string(digits[:eventDigits]), 16, 64)
	return n, err == nil && n < limit
}

// IDOf is the id header of a record.
func IDOf(r *kgo.Record) []byte {
	for i := range r.Headers {
		if r.Headers[i].Key == IDHeader {
			return r.Headers[i].Value
		}
	}
	return nil
}

// A Payment is the JSON of a record. It depends only on the event's number.
type Payment struct {
	Event     string `json:"event"` // the number, as 16 hexadecimal digits
	From      int    `json:"from"`
	To        int    `json:"to"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
	Reference string `json:"reference"`
}

// A record's value starts with eventPrefix and the event's number. The reference fills it up to
// ValueBytes.
const (
	eventPrefix = `{"event":"`
	eventDigits = 16
	ValueBytes  = 200
)

// Payment returns the payment of the event with the number, without its reference.
func (l *Log) Payment(number uint64) Payment {
	h := Mix(l.Source.Seed ^ Mix(number^0xACC7))
	accounts := max(l.Accounts, 2)
	from := int(h % uint64(accounts))
	return Payment{
		Event: fmt.Sprintf("%016x", number), From: from, To: (from + 1 + int(h>>32%uint64(accounts-1))) % accounts,
		Amount: int64(h>>20%10_000) + 1, Currency: "EUR",
	}
}

// Value is the JSON of the payment of an event.
func (l *Log) Value(number uint64) []byte {
	p := l.Payment(number)
	v := make([]byte, 0, ValueBytes+eventDigits)
	v = fmt.Appendf(v, eventPrefix+`%s","from":%d,"to":%d,"amount":%d,"currency":%q,"reference":"`, p.Event, p.From, p.To, p.Amount, p.Currency)
	const end = `"}`
	var word [8]byte
	for h := Mix(l.Source.Seed ^ number); len(v) < ValueBytes-len(end); h = Mix(h) {
		binary.BigEndian.PutUint64(word[:], h)
		v = hex.AppendEncode(v, word[:])
	}
	return append(v[:ValueBytes-len(end)], end...)
}
