// Package traffic makes the events of a run from their numbers: the same for every process and
// every contender, with repeats, and with a known outcome.
package traffic

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/weekbucket"
)

// IDKind is the form of generated ids.
type IDKind string

// The forms: random UUIDs, random digits after a prefix, ULIDs of one hour, increasing numbers, and
// URLs. The empty kind is UUIDv4.
const (
	UUIDv4   IDKind = "uuidv4"
	Prefixed IDKind = "prefixed"
	ULID     IDKind = "ulid"
	Numeric  IDKind = "numeric"
	URL      IDKind = "url"
)

// A Source makes events from numbers. The same seed and number give the same scope, id and time in
// every process. So millions of events need no file, and a repeat is identified by its number.
type Source struct {
	Seed   uint64
	Kind   IDKind
	Scopes int             // events are distributed over them evenly, in order
	Weeks  int             // and over as many weeks, ending with Latest
	Latest weekbucket.Week // events of this week are in its first second, so that none is ahead of the clock
}

// ErrTooMany is returned for more weeks or scopes than a source can have.
var ErrTooMany = errors.New("too many weeks or scopes")

// NewSource returns a source whose latest week is the current one.
func NewSource(seed uint64, kind IDKind, scopes, weeks int) (Source, error) {
	scopes, weeks = max(scopes, 1), max(weeks, 1)
	if weeks > maxWeeks || scopes > maxScopes {
		return Source{}, fmt.Errorf("%w: %d weeks and %d scopes: give up to %d and %d", ErrTooMany, weeks, scopes, maxWeeks, maxScopes)
	}
	latest, err := weekbucket.Of(time.Now())
	return Source{Seed: seed, Kind: kind, Scopes: scopes, Weeks: weeks, Latest: latest}, err
}

const (
	maxWeeks  = 520
	maxScopes = 50_000 // the engine's limit of names is 65,536
)

// The scope of the events of a source with one scope, and the topic of their origins.
const (
	DefaultScope = "bench"
	Topic        = "bench"
)

// Options returns the options of an engine that retains all weeks of the source.
func (s *Source) Options() engine.Options { return engine.Options{RetentionWeeks: s.Weeks + 1} }

// Event returns the event with the number. Its id is appended to arena.
func (s *Source) Event(n uint64, arena []byte) (engine.Event, []byte) {
	at := len(arena)
	arena = s.AppendID(arena, n)
	spread := Mix(s.Seed ^ 0x5CA1AB1E ^ Mix(n))
	week := s.Latest - weekbucket.Week(spread%uint64(s.Weeks))
	scope := DefaultScope
	if s.Scopes > 1 {
		scope = "scope-" + strconv.FormatUint(spread>>32%uint64(s.Scopes), 10)
	}
	return engine.Event{
		Scope:  scope,
		ID:     arena[at:len(arena):len(arena)],
		Time:   week.Start().Add(time.Duration(spread>>8%1000) * time.Millisecond),
		Origin: engine.Origin{Topic: Topic, Offset: int64(n)},
	}, arena
}

// AppendID appends the id of an event.
func (s *Source) AppendID(dst []byte, n uint64) []byte {
	switch random := Mix(s.Seed ^ Mix(2*n)); s.Kind {
	case Prefixed:
		return appendDigits(append(dst, "payment-"...), random)
	case ULID:
		return s.appendULID(dst, n)
	case Numeric:
		return strconv.AppendUint(dst, (1+s.Seed%1000)*1_000_000_000_000+n, 10)
	case URL:
		return appendDigits(append(dst, "https://shop.example.com/api/v1/orders/"...), random)
	}
	return append(dst, s.UUID(n).String()...)
}

// appendDigits appends a number with all the digits that one may have.
func appendDigits(dst []byte, n uint64) []byte {
	var digits [20]byte
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = '0' + byte(n%10)
		n /= 10
	}
	return append(dst, digits[:]...)
}

// appendULID appends a time in the first hour of the latest week and 80 random bits, five bits for
// each character.
func (s *Source) appendULID(dst []byte, n uint64) []byte {
	const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	ms := uint64(s.Latest.Start().UnixMilli()) + n/100%3_600_000
	for shift := 45; shift >= 0; shift -= 5 {
		dst = append(dst, alphabet[ms>>shift&31])
	}
	low := Mix(s.Seed ^ Mix(2*n)) // distinct for each n
	high := Mix(s.Seed ^ Mix(2*n+1))
	for shift := 10; shift >= 0; shift -= 5 {
		dst = append(dst, alphabet[high>>shift&31])
	}
	for shift := 60; shift >= 0; shift -= 5 {
		dst = append(dst, alphabet[low>>shift&31])
	}
	return dst
}

// UUID returns the id of an event as a UUID.
func (s *Source) UUID(n uint64) (u uuid.UUID) {
	hi, lo := Mix(s.Seed^Mix(2*n))&^0xF000|4<<12, Mix(s.Seed^Mix(2*n+1))&^(3<<62)|2<<62
	binary.BigEndian.PutUint64(u[:8], hi)
	binary.BigEndian.PutUint64(u[8:], lo)
	return u
}

// Mix is the finalizer of splitmix64: a bijection that spreads each bit over all.
func Mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// Repeats says which earlier events are repeated.
type Repeats string

// The kinds: one of the last 10,000 ids, any of all history, or half of each. The empty kind is
// RepeatMixed.
const (
	RepeatRecent Repeats = "recent"
	RepeatAll    Repeats = "all"
	RepeatMixed  Repeats = "mixed"
)

// Numbers is a sequence of event numbers, some of which repeat earlier ones. The same seed gives
// the same sequence. It keeps no events.
type Numbers struct {
	Seed    uint64
	Share   float64 // of events that are repeats
	Repeats Repeats
	Recent  uint64 // how far back a recent repeat reaches; 0 = recentWindow

	position uint64
	fresh    uint64 // distinct numbers so far: 0 to fresh-1
}

// recentWindow is the default of Numbers.Recent.
const recentWindow = 10_000

// Distinct is the number of distinct events so far.
func (t *Numbers) Distinct() uint64 { return t.fresh }

// Next returns the number of the next event, and whether it is a repeat. Events are numbered as
// they appear.
func (t *Numbers) Next() (number uint64, repeat bool) {
	h := Mix(t.Seed ^ Mix(t.position))
	t.position++
	if t.fresh == 0 || float64(h>>11)/(1<<53) >= t.Share {
		t.fresh++
		return t.fresh - 1, false
	}
	r := Mix(h)
	if t.Repeats == RepeatRecent || t.Repeats != RepeatAll && r&1 == 0 {
		return t.fresh - 1 - r>>1%min(t.fresh, cmp.Or(t.Recent, recentWindow)), true
	}
	return r >> 1 % t.fresh, true
}
