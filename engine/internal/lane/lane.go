// Package lane lets transactions that would conflict take turns. It only schedules: its caller
// validates every transaction, with or without a turn.
package lane

import (
	"math"
	"slices"
	"sync"
	"time"
)

// A Lane is the queue of the transactions that would conflict if they ran in parallel. The zero
// value is an empty lane. All methods of this package are safe for concurrent use.
type Lane struct {
	mu      sync.Mutex // guards the fields below and the members; not held during I/O or waits
	current *Turn      // current turn, or nil
	queue   []*Turn    // waiting turns, in order of arrival

	commits [64]commit // ring of the last commits
	next    int
}

// A commit records that a transaction of a member was admitted into a batch.
type commit struct {
	seq    uint64
	member *Member
}

// defaultTurn is the default maximum turn.
const defaultTurn = time.Second

// A Member runs transactions one after the other. Its transactions take turns with those of other
// members as long as they conflict, because one reads keys that another has written. Members
// without conflicts run in parallel, and so do all members at first. A nil Member is not in a lane.
type Member struct {
	lane  *Lane
	limit time.Duration

	// Guarded by lane.mu.
	score  int   // the member takes turns while it is above 0
	losses int   // consecutive losses
	turn   *Turn // its current or awaited turn, or nil
}

// After a conflict, a member takes turns for its next meeting transactions without a conflict, or
// up to mostScore after several conflicts. So it takes turns as long as about one in meeting
// transactions conflicts.
const (
	meeting   = 16
	mostScore = 64
)

// maxDoublings bounds how often the maximum turn of a member is doubled, once for each consecutive
// failure.
const maxDoublings = 6

// maxTurn is several years; a longer turn could not be doubled.
const maxTurn = math.MaxInt64 >> maxDoublings

// A Turn is a transaction's permission to run, or its place in the queue. A transaction that runs
// without a turn has a nil Turn.
type Turn struct {
	member *Member
	begun  chan struct{} // closed when the turn begins
	limit  *time.Timer   // ends the turn; set when it begins
}

// Join returns a new member. turn bounds how long one of its transactions delays the others; 0 or
// less is one second. It is doubled after each consecutive conflict, up to 64 times the given one.
func (l *Lane) Join(turn time.Duration) *Member {
	if turn <= 0 {
		turn = defaultTurn
	}
	return &Member{lane: l, limit: min(turn, maxTurn)}
}

// Serialized reports whether the member has recently conflicted with another one, so that its next
// transaction waits for a turn.
func (m *Member) Serialized() bool {
	if m == nil {
		return false
	}
	m.lane.mu.Lock()
	defer m.lane.mu.Unlock()
	return m.score > 0
}

// Queue adds the member's next turn to the queue. It returns nil if the next transaction runs
// without a turn, because the member takes no turns or already has one.
func (m *Member) Queue() *Turn {
	if m == nil {
		return nil
	}
	m.lane.mu.Lock()
	defer m.lane.mu.Unlock()
	if m.score == 0 || m.turn != nil {
		return nil
	}
	m.turn = &Turn{member: m, begun: make(chan struct{})}
	m.lane.queue = append(m.lane.queue, m.turn)
	m.lane.advance()
	return m.turn
}

// Begun returns a channel that is closed when the turn begins. t must not be nil.
func (t *Turn) Begun() <-chan struct{} { return t.begun }

// advance begins the next turn if there is no current one. The caller holds l.mu.
func (l *Lane) advance() {
	if l.current != nil || len(l.queue) == 0 {
		return
	}
	t := l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	l.current = t
	t.limit = time.AfterFunc(t.member.limit<<min(t.member.losses, maxDoublings), t.End)
	close(t.begun)
}

// End ends a turn, or removes it from the queue. Further calls do nothing.
func (t *Turn) End() {
	if t == nil {
		return
	}
	l := t.member.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.member.turn != t {
		return
	}
	t.member.turn = nil
	if l.current != t {
		i := slices.Index(l.queue, t)
		l.queue = slices.Delete(l.queue, i, i+1)
		return
	}
	t.limit.Stop()
	l.current = nil
	l.advance()
}

// Lost records that a transaction of the member has conflicted with a batch.
func (m *Member) Lost(to uint64) {
	if m == nil {
		return
	}
	m.lane.mu.Lock()
	defer m.lane.mu.Unlock()
	m.losses++
	m.meet(to)
}

// Committed records that a transaction of the member is admitted into batch seq. met is the batch
// with which it would have conflicted without waiting for its turn, or 0.
func (m *Member) Committed(seq, met uint64) {
	if m == nil {
		return
	}
	l := m.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commits[l.next%len(l.commits)] = commit{seq, m}
	l.next++
	m.losses = 0
	if met > 0 {
		m.meet(met)
	} else {
		m.score = max(m.score-1, 0)
	}
}

// meet records a conflict of the member with the members whose transactions are in a batch. The
// caller holds lane.mu.
func (m *Member) meet(seq uint64) {
	m.score = min(m.score+meeting, mostScore)
	for _, c := range m.lane.commits {
		if c.seq == seq && c.member != nil && c.member != m {
			c.member.score = min(c.member.score+meeting, mostScore)
		}
	}
}
