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
	losses int   // in a row
	alone  int   // losses in a row, in a turn that excludes all members, to none of them
	turn   *Turn // its current or awaited turn, nil for none
}

// After a conflict, a member takes turns for its next meeting transactions without a conflict, or
// up to mostScore after several conflicts. So it takes turns as long as about one in meeting
// transactions conflicts.
const (
	meeting   = 16
	mostScore = 64
)

// After keepAfter losses in a row a member keeps its turn over its next transactions, until one of them
// commits, and after excludeAfter ones also the members that take no turns wait for that. A member that
// loses even then, to none of the others, loses to itself: after aloneMost such losses it keeps no turn.
const (
	keepAfter    = 3
	excludeAfter = 6
	aloneMost    = 3
)

// MaxKept is how long a turn lasts at most that a member keeps.
const MaxKept = 5 * time.Minute

// maxTurn is years: a longer turn could not be doubled.
const maxTurn = math.MaxInt64 >> keepAfter

// A Turn is a transaction's permission to run, or its place in the queue. A transaction that runs
// without a turn has a nil Turn.
type Turn struct {
	member *Member
	begun  chan struct{} // closed when the turn begins
	limit  *time.Timer   // ends the turn; set when it begins

	// Guarded by lane.mu.
	isKept bool // by its member, beyond the present transaction
	isFree bool // no transaction has it: it is the member's next one's
}

// Join returns a new member. turn bounds how long one of its transactions delays the others; 0 or
// less is one second. After each conflict in a row it is doubled, and after the third one the member keeps
// its turn until a transaction commits, at most for MaxKept.
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

// Queue puts the member's next turn into the queue, or returns the one that it has kept. nil means that its
// next transaction runs without one: the member takes no turns, or another transaction has its turn.
func (m *Member) Queue() *Turn {
	if m == nil {
		return nil
	}
	m.lane.mu.Lock()
	defer m.lane.mu.Unlock()
	if t := m.turn; t != nil {
		if !t.isFree {
			return nil
		}
		t.isFree = false
		return t
	}
	if m.score == 0 && !m.lane.excludes(m) {
		return nil
	}
	m.turn = &Turn{member: m, begun: make(chan struct{})}
	m.lane.queue = append(m.lane.queue, m.turn)
	m.lane.advance()
	return m.turn
}

// Begun returns a channel that is closed when the turn begins. t must not be nil.
func (t *Turn) Begun() <-chan struct{} { return t.begun }

// HasBegun reports whether the turn has begun.
func (t *Turn) HasBegun() bool {
	select {
	case <-t.begun:
		return true
	default:
		return false
	}
}

// advance begins the next turn if there is no current one. The caller holds l.mu.
func (l *Lane) advance() {
	if l.current != nil || len(l.queue) == 0 {
		return
	}
	t := l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	l.current = t
	limit := t.member.limit << min(t.member.losses, keepAfter)
	if t.isKept = t.member.keeps(); t.isKept {
		limit = max(limit, MaxKept)
	}
	t.limit = time.AfterFunc(limit, t.expire)
	close(t.begun)
}

// excludes reports whether m waits for the current turn although it takes no turns. l.mu is held.
func (l *Lane) excludes(m *Member) bool {
	c := l.current
	return c != nil && c.isKept && c.member != m && c.member.losses >= excludeAfter
}

// keeps reports whether the member keeps its turn. lane.mu is held.
func (m *Member) keeps() bool { return m.losses >= keepAfter && m.alone < aloneMost }

// expire ends a turn whose time is over. A member that has kept it in vain begins anew, so that others get
// their turns meanwhile.
func (t *Turn) expire() {
	l := t.member.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.member.turn == t && t.isKept {
		t.member.losses = 0
	}
	t.end()
}

// End ends a turn, or takes it out of the queue. Repeating it changes nothing.
func (t *Turn) End() {
	if t == nil {
		return
	}
	t.member.lane.mu.Lock()
	defer t.member.lane.mu.Unlock()
	t.end()
}

// end is End with lane.mu held.
func (t *Turn) end() {
	l := t.member.lane
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

// Keep leaves the turn to the member's next transaction; the limit of the turn stays.
func (t *Turn) Keep() {
	t.member.lane.mu.Lock()
	defer t.member.lane.mu.Unlock()
	t.isFree = t.member.turn == t
}

// Lost records that a transaction of the member has failed because of a batch. It ends the turn of the
// transaction, nil for none, unless the member keeps it.
func (m *Member) Lost(to uint64, turn *Turn) {
	if m == nil {
		return
	}
	l := m.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	hadAll := turn != nil && m.turn == turn && turn.isKept && m.losses >= excludeAfter
	switch hasMet := m.meet(to); {
	case hasMet:
		m.alone = 0
	case hadAll:
		m.alone++
	}
	m.losses++
	if turn == nil || m.turn != turn {
		return
	}
	if !m.keeps() {
		turn.end()
		return
	}
	if !turn.isKept {
		turn.isKept = true
		turn.limit.Reset(MaxKept) // it may expire nevertheless, if its time is just over
	}
	turn.isFree = true
}

// LosesAlone reports whether the member's transactions conflict repeatedly although all other
// members wait for them: with writes of their own closures, or of callers that are not members.
func (m *Member) LosesAlone() bool {
	if m == nil {
		return false
	}
	m.lane.mu.Lock()
	defer m.lane.mu.Unlock()
	return m.alone >= aloneMost
}

// Leave ends the turn that the member keeps, because it runs no transactions for now.
func (m *Member) Leave() {
	if m == nil {
		return
	}
	m.lane.mu.Lock()
	defer m.lane.mu.Unlock()
	if t := m.turn; t != nil && t.isFree {
		t.end()
	}
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
	m.losses, m.alone = 0, 0
	if met > 0 {
		m.meet(met)
	} else {
		m.score = max(m.score-1, 0)
	}
}

// meet records that the member has met those whose transactions are in a batch, and reports whether there
// are any. lane.mu is held.
func (m *Member) meet(seq uint64) (hasMet bool) {
	m.score = min(m.score+meeting, mostScore)
	for _, c := range m.lane.commits {
		if c.seq == seq && c.member != nil && c.member != m {
			c.member.score = min(c.member.score+meeting, mostScore)
			hasMet = true
		}
	}
	return hasMet
}
