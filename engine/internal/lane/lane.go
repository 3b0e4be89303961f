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
	mu      sync.Mutex // guards all below, and the members; no I/O and no waiting under it
	current *Turn      // the current turn, nil for none
	queue   []*Turn    // those that wait, in the order of arrival

	commits [64]commit // the last ones, in a ring
	next    int
}

// A commit is a transaction of a member that was admitted into a batch.
type commit struct {
	seq    uint64
	member *Member
}

// defaultTurn is the maximum turn of a member that states none.
const defaultTurn = time.Second

// A Member runs transactions one after the other. They take turns with those of other members as
// long as they conflict, because one reads keys that another has written. Members without conflicts
// run in parallel, and so do all members at first. A nil Member is not in a lane.
type Member struct {
	lane  *Lane
	limit time.Duration

	// Guarded by lane.mu.
	score  int   // the member takes turns while it is above 0
	losses int   // in a row
	turn   *Turn // its current or awaited turn, nil for none
}

// A member that has met another one takes turns. It stops taking turns after meeting transactions
// in a row without a conflict, or up to mostScore if it has met several times: so it takes turns
// while one transaction in about meeting meets another.
const (
	meeting   = 16
	mostScore = 64
)

// maxDoublings bounds how often the maximum turn of a member is doubled, once for each failure in a
// row.
const maxDoublings = 6

// maxTurn is years: a longer turn could not be doubled.
const maxTurn = math.MaxInt64 >> maxDoublings

// A Turn is the permission to run that a transaction has or waits for. A nil Turn is that of a
// transaction that runs without one.
type Turn struct {
	member *Member
	begun  chan struct{} // closed when the turn begins
	limit  *time.Timer   // ends the turn; set when it begins
}

// Join returns a new member. turn bounds how long one of its transactions delays the others; 0 or
// less is one second. After each conflict in a row it is doubled, up to 64 times the given one.
func (l *Lane) Join(turn time.Duration) *Member {
	if turn <= 0 {
		turn = defaultTurn
	}
	return &Member{lane: l, limit: min(turn, maxTurn)}
}

// Serialized reports whether the member has recently met another one, so that its next transaction
// waits for its turn if others are before it.
func (m *Member) Serialized() bool {
	if m == nil {
		return false
	}
	m.lane.mu.Lock()
	defer m.lane.mu.Unlock()
	return m.score > 0
}

// Queue puts the member's next turn into the queue. nil means that its next transaction runs without
// one: the member takes no turns, or has one already.
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

// Begun is closed when the turn begins. The turn is not nil.
func (t *Turn) Begun() <-chan struct{} { return t.begun }

// advance begins the next turn if there is no current one. l.mu is held.
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

// End ends a turn, or takes it out of the queue. Repeating it changes nothing.
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

// Lost records that a transaction of the member has failed because of a batch.
func (m *Member) Lost(to uint64) {
	if m == nil {
		return
	}
	m.lane.mu.Lock()
	defer m.lane.mu.Unlock()
	m.losses++
	m.meet(to)
}

// Committed records that a transaction of the member is admitted into a batch, and the batch with
// which it would have conflicted without waiting for its turn, 0 for none.
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

// meet records that the member has met those whose transactions are in a batch. lane.mu is held.
func (m *Member) meet(seq uint64) {
	m.score = min(m.score+meeting, mostScore)
	for _, c := range m.lane.commits {
		if c.seq == seq && c.member != nil && c.member != m {
			c.member.score = min(c.member.score+meeting, mostScore)
		}
	}
}
