package bench

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

// A topicLog is the data that a run produces: N records, a share of which repeat earlier events:
// half of these one of the last 10,000, many of which fall into one batch of a consumer, half any
// earlier one. One repeat in four has another key than its event had, and so usually another
// partition.
//
// Everything depends only on the seed, the log and the position. Events are numbered as they
// appear.
type topicLog struct {
	source
	N        int
	Dup      float64 // share of the records that repeat an event
	Recent   uint64  // how far back the recent repeats reach; 0 = recentWindow
	Accounts int     // the number of accounts of the payments; 0 = 2

	recorded []engine.Event // take the place of every recordedEach-th generated event
}

// recordedEach spreads the bundled log over the demo.
const recordedEach = 16

// recordedAmong is how many of the first n events are recorded ones.
func (l *topicLog) recordedAmong(n uint64) uint64 {
	return min((n+recordedEach-1)/recordedEach, uint64(len(l.recorded)))
}

// A sequence is a topicLog that is being read from its beginning.
type sequence struct {
	traffic
	log *topicLog
}

func (l *topicLog) begin() *sequence {
	return &sequence{traffic{seed: l.Seed, share: l.Dup, recent: l.Recent}, l}
}

// next returns the number of the next record's event, and whether it is a repeat.
func (s *sequence) next() (number uint64, repeat bool) {
	before := s.fresh
	number = s.traffic.next()
	return number, number < before
}

// events is the number of distinct events so far.
func (s *sequence) events() uint64 { return s.fresh }

// limit is above the number of each event.
func (l *topicLog) limit() uint64 { return uint64(l.N) }

// each calls fn with the number of each event of the log, once.
func (l *topicLog) each(fn func(number uint64) error) error {
	s := l.begin()
	for range l.N {
		if n, repeat := s.next(); !repeat {
			if err := fn(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// A dealt log is read without a broker: its records are distributed to partitions in turns.
type dealt struct {
	log     *topicLog
	numbers []uint32 // nil: no record repeats another
	parts   uint64
	ends    uint64 // records of a partition
}

// deal numbers all records of the log.
func (l *topicLog) deal(parts int) dealt {
	d := dealt{log: l, parts: uint64(parts), ends: uint64(l.N / parts)}
	if l.Dup == 0 {
		return d
	}
	d.numbers = make([]uint32, l.N)
	s := l.begin()
	for i := range d.numbers {
		n, _ := s.next()
		d.numbers[i] = uint32(n)
	}
	return d
}

// number returns the event at a position of a partition.
func (d *dealt) number(p int, at uint64) uint64 {
	i := at*d.parts + uint64(p)
	if d.numbers == nil {
		return i
	}
	return uint64(d.numbers[i])
}

// events returns n events of a partition, from a position on, and their numbers.
func (d *dealt) events(p int, at, n uint64) (numbers []uint64, events []engine.Event) {
	numbers, events = make([]uint64, n), make([]engine.Event, n)
	arena := make([]byte, 0, 40*n)
	for i := range numbers {
		numbers[i] = d.number(p, at+uint64(i))
		events[i], arena = d.log.source.event(numbers[i], arena)
		events[i].Origin.Partition = int32(p)
	}
	return numbers, events
}

// event returns the event of a number. Its id may be appended to arena.
func (l *topicLog) event(number uint64, arena []byte) engine.Event {
	if i := number / recordedEach; number%recordedEach == 0 && i < uint64(len(l.recorded)) {
		return l.recorded[i]
	}
	ev, _ := l.source.event(number, arena)
	return ev
}

// The id and the time of a record are in headers that the adapter reads by default; its value is
// the JSON of a payment.
const (
	idHeader   = "message_id"
	timeHeader = "event_time"
)

// record makes the next record.
func (s *sequence) record() *kgo.Record {
	number, repeat := s.next()
	ev := s.log.event(number, make([]byte, 0, 36))
	key := mix(s.log.Seed ^ mix(number))
	if draw := mix(key ^ s.position); repeat && draw%4 == 0 {
		key = draw
	}
	return &kgo.Record{
		Key:   strconv.AppendUint(nil, key, 36),
		Value: s.log.value(number),
		Headers: []kgo.RecordHeader{
			{Key: idHeader, Value: ev.ID},
			{Key: timeHeader, Value: ev.Time.AppendFormat(nil, time.RFC3339Nano)},
		},
	}
}

// numberOf returns the number of a record's event, which is below limit. It does not decode the
// rest of the value.
func numberOf(r *kgo.Record, limit uint64) (uint64, error) {
	if n, ok := numberIn(r.Value, limit); ok {
		return n, nil
	}
	return 0, fmt.Errorf("%s/%d has a record at %d that was not produced by this run", r.Topic, r.Partition, r.Offset)
}

// numberIn is numberOf for the value of a record.
func numberIn(value []byte, limit uint64) (uint64, bool) {
	digits, ok := bytes.CutPrefix(value, []byte(eventPrefix))
	if !ok || len(value) != valueBytes {
		return 0, false
	}
	n, err := strconv.ParseUint(string(digits[:eventDigits]), 16, 64)
	return n, err == nil && n < limit
}

// idOf is the id header of a record.
func idOf(r *kgo.Record) []byte {
	for i := range r.Headers {
		if r.Headers[i].Key == idHeader {
			return r.Headers[i].Value
		}
	}
	return nil
}

// A payment is the JSON of a record. It depends only on the event's number.
type payment struct {
	Event     string `json:"event"` // the number, as 16 hexadecimal digits
	From      int    `json:"from"`
	To        int    `json:"to"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
	Reference string `json:"reference"`
}

// A record's value begins with eventPrefix and the event's number, and is filled up to valueBytes
// by the reference.
const (
	eventPrefix = `{"event":"`
	eventDigits = 16
	valueBytes  = 200
)

// payment returns what the event of a number pays.
func (l *topicLog) payment(number uint64) payment {
	h := mix(l.Seed ^ mix(number^0xACC7))
	accounts := max(l.Accounts, 2)
	from := int(h % uint64(accounts))
	return payment{
		Event: fmt.Sprintf("%016x", number), From: from, To: (from + 1 + int(h>>32%uint64(accounts-1))) % accounts,
		Amount: int64(h>>20%10_000) + 1, Currency: "EUR",
	}
}

// value is the JSON of the payment of an event.
func (l *topicLog) value(number uint64) []byte {
	p := l.payment(number)
	v := make([]byte, 0, valueBytes+eventDigits)
	v = fmt.Appendf(v, eventPrefix+`%s","from":%d,"to":%d,"amount":%d,"currency":%q,"reference":"`, p.Event, p.From, p.To, p.Amount, p.Currency)
	const end = `"}`
	var word [8]byte
	for h := mix(l.Seed ^ number); len(v) < valueBytes-len(end); h = mix(h) {
		binary.BigEndian.PutUint64(word[:], h)
		v = hex.AppendEncode(v, word[:])
	}
	return append(v[:valueBytes-len(end)], end...)
}
