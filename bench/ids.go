package bench

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/weekbucket"
)

// IDKind is the form of generated ids.
type IDKind string

// The forms: random UUIDs, UUIDs that begin with the time, and numbered text. The empty kind is
// UUIDv4.
const (
	UUIDv4 IDKind = "uuidv4"
	UUIDv7 IDKind = "uuidv7"
	Text   IDKind = "text"
)

// A source makes events from numbers: the same seed and number give the same scope, id and time, in
// every process, so that millions of events need no file and a repeat is identified by its number.
type source struct {
	Seed   uint64
	Kind   IDKind
	Scopes int             // events are distributed over them evenly, in order
	Weeks  int             // and over as many weeks, ending with Latest
	Latest weekbucket.Week // its events are in its first second, so that none is ahead of the clock
	Topic  string

	names []string // of the scopes
}

// newSource returns a source whose latest week is the current one.
func newSource(seed uint64, kind IDKind, scopes, weeks int) (source, error) {
	scopes, weeks = max(scopes, 1), max(weeks, 1)
	if weeks > maxWeeks || scopes > maxScopes {
		return source{}, fmt.Errorf("%w: %d weeks and %d scopes: give up to %d and %d", ErrUsage, weeks, scopes, maxWeeks, maxScopes)
	}
	latest, err := weekbucket.Of(time.Now())
	s := source{Seed: seed, Kind: kind, Scopes: scopes, Weeks: weeks, Latest: latest, Topic: "bench"}
	s.nameScopes()
	return s, err
}

// nameScopes completes a source that another process has described.
func (s *source) nameScopes() {
	s.names = []string{DefaultScope}
	if s.Scopes == 1 {
		return
	}
	s.names = make([]string, s.Scopes)
	for i := range s.names {
		s.names[i] = "scope-" + strconv.Itoa(i)
	}
}

const (
	maxWeeks  = 520
	maxScopes = 50_000 // the engine's limit of names is 65,536
)

// options returns those of an engine that retains all weeks of the source.
func (s *source) options() engine.Options { return engine.Options{RetentionWeeks: s.Weeks + 1} }

// event returns the event of a number; its id is appended to arena.
func (s *source) event(n uint64, arena []byte) (engine.Event, []byte) {
	at := len(arena)
	arena = s.appendID(arena, n)
	spread := mix(s.Seed ^ 0x5CA1AB1E ^ mix(n))
	week := s.Latest - weekbucket.Week(spread%uint64(s.Weeks))
	return engine.Event{
		Scope:  s.names[spread>>32%uint64(s.Scopes)],
		ID:     arena[at:len(arena):len(arena)],
		Time:   week.Start().Add(time.Duration(spread>>8%1000) * time.Millisecond),
		Origin: engine.Origin{Topic: s.Topic, Offset: int64(n)},
	}, arena
}

func (s *source) appendID(dst []byte, n uint64) []byte {
	hi, lo := mix(s.Seed^mix(2*n)), mix(s.Seed^mix(2*n+1))
	switch s.Kind {
	case Text:
		return strconv.AppendUint(fmt.Appendf(dst, "order-%06d-", hi%1_000_000), n, 10)
	case UUIDv7:
		ms := uint64(s.Latest.Start().UnixMilli()) + n/100 // a hundred in a millisecond
		return appendUUID(dst, ms<<16|7<<12|hi&0x0FFF, lo&^(3<<62)|2<<62)
	default:
		return appendUUID(dst, hi&^0xF000|4<<12, lo&^(3<<62)|2<<62)
	}
}

func appendUUID(dst []byte, hi, lo uint64) []byte {
	var u uuid.UUID
	binary.BigEndian.PutUint64(u[:8], hi)
	binary.BigEndian.PutUint64(u[8:], lo)
	return append(dst, u.String()...)
}

// mix is the finalizer of splitmix64: a bijection that spreads each bit over all.
func mix(x uint64) uint64 {
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

// A traffic is a sequence of event numbers, in which a share repeats earlier ones. It is the same
// for the same seed, and keeps no events.
type traffic struct {
	seed     uint64
	share    float64 // of events that are repeats
	repeats  Repeats
	recent   uint64 // how far back a recent repeat reaches; 0 = recentWindow
	position uint64
	fresh    uint64 // distinct numbers so far: 0 to fresh-1
}

// recentWindow is the default of traffic.recent.
const recentWindow = 10_000

// next returns the number of the next event.
func (t *traffic) next() uint64 {
	h := mix(t.seed ^ mix(t.position))
	t.position++
	if t.fresh == 0 || float64(h>>11)/(1<<53) >= t.share {
		t.fresh++
		return t.fresh - 1
	}
	r := mix(h)
	if t.repeats == RepeatRecent || t.repeats != RepeatAll && r&1 == 0 {
		return t.fresh - 1 - r>>1%min(t.fresh, cmp.Or(t.recent, recentWindow))
	}
	return r >> 1 % t.fresh
}
