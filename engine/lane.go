package engine

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"
)

// A lane is the queue of an engine's transactions that would conflict if they ran in parallel. It
// schedules and nothing else: every transaction is validated where it is admitted, with or without
// a turn. A turn ends as soon as the batch is applied, before it is durable, so that the next
// transaction runs while the batch is synced.
type lane struct {
	mu      sync.Mutex // guards all below, and the members; no I/O and no waiting under it
	current *turn      // the current turn, nil for none
	queue   []*turn    // those that wait, in the order of arrival

	commits [64]laneCommit // the last ones, in a ring
	next    int
}

// A laneCommit is a transaction of a member that was admitted into a batch.
type laneCommit struct {
	seq    uint64
	member *LaneMember
}

// defaultTurn is the maximum turn of a member of the lane that states none.
const defaultTurn = time.Second

// A LaneMember is a caller of Update. Its transactions take turns with those of other members as long
// as they conflict, because one reads keys that another has written. Members without conflicts run in
// parallel, and so do all members at first. A caller makes one member for each series of
// transactions that run one after the other, for example for each partition that it consumes. A
// member is safe for concurrent use and needs no closing.
type LaneMember struct {
	lane  *lane
	limit time.Duration

	// Guarded by lane.mu.
	score  int   // the member takes turns while it is above 0
	losses int   // in a row
	turn   *turn // its current or awaited turn, nil for none
}

// A member that has met another one takes turns. It stops taking turns after laneMeeting
// transactions in a row without a conflict, or up to laneMost if it has met several times: so it
// takes turns while one transaction in about laneMeeting meets another.
const (
	laneMeeting = 16
	laneMost    = 64
)

// maxDoublings bounds how often the maximum turn of a member is doubled, once for each failure in a
// row.
const maxDoublings = 6

// maxTurn is years: a longer turn could not be doubled.
const maxTurn = math.MaxInt64 >> maxDoublings

// A turn is the permission to run that a transaction has or waits for. A nil turn is that of a
// transaction that runs without one.
type turn struct {
	member *LaneMember
	begun  chan struct{} // closed when the turn begins
	limit  *time.Timer   // ends the turn; set when it begins
}

// Serialized reports whether the member has recently met another one, so that its next transaction
// waits for its turn if others are before it. Work that does not need the transaction is then best
// done before Update: in the turn, others wait for it.
func (m *LaneMember) Serialized() bool {
	if m == nil {
		return false
	}
	m.lane.mu.Lock()
	defer m.lane.mu.Unlock()
	return m.score > 0
}

// await waits for a turn if the member takes turns, and neither has nor awaits one already.
func (m *LaneMember) await(ctx context.Context, c *core) (*turn, error) {
	t := m.join()
	if t == nil {
		return nil, nil
	}
	select {
	case <-t.begun:
		return t, nil
	default:
	}
	var err error
	select {
	case <-t.begun:
		return t, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-c.work.Done():
		err = ErrClosed
	case <-c.stopped:
		err = c.Err()
	}
	t.end()
	return nil, err
}

// join puts the member's next turn into the queue; nil means that it runs without one.
func (m *LaneMember) join() *turn {
	if m == nil {
		return nil
	}
	m.lane.mu.Lock()
	defer m.lane.mu.Unlock()
	if m.score == 0 || m.turn != nil {
		return nil
	}
	m.turn = &turn{member: m, begun: make(chan struct{})}
	m.lane.queue = append(m.lane.queue, m.turn)
	m.lane.advance()
	return m.turn
}

// advance begins the next turn if there is no current one. l.mu is held.
func (l *lane) advance() {
	if l.current != nil || len(l.queue) == 0 {
		return
	}
	t := l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	l.current = t
	t.limit = time.AfterFunc(t.member.limit<<min(t.member.losses, maxDoublings), t.end)
	close(t.begun)
}

// end ends a turn, or takes it out of the queue. Repeating it changes nothing.
func (t *turn) end() {
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

// lost records that a transaction of the member has failed because of a batch.
func (m *LaneMember) lost(to uint64) {
	if m == nil {
		return
	}
	m.lane.mu.Lock()
	defer m.lane.mu.Unlock()
	m.losses++
	m.meet(to)
}

// committed records that a transaction of the member is admitted into a batch, and the batch with
// which it would have conflicted without waiting for its turn, 0 for none.
func (m *LaneMember) committed(seq, met uint64) {
	if m == nil {
		return
	}
	l := m.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commits[l.next%len(l.commits)] = laneCommit{seq, m}
	l.next++
	m.losses = 0
	if met > 0 {
		m.meet(met)
	} else {
		m.score = max(m.score-1, 0)
	}
}

// meet records that the member has met those whose transactions are in a batch. lane.mu is held.
func (m *LaneMember) meet(seq uint64) {
	m.score = min(m.score+laneMeeting, laneMost)
	for _, c := range m.lane.commits {
		if c.seq == seq && c.member != nil && c.member != m {
			c.member.score = min(c.member.score+laneMeeting, laneMost)
		}
	}
}
