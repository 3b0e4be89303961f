package lane

import (
	"testing"
	"testing/synctest"
	"time"
)

// met returns members of a new lane, each of which has met another one.
func met(n int) (members []*Member) {
	var l Lane
	for i := range n {
		m := l.Join(time.Second)
		m.Lost(uint64(i+1), nil)
		m.Committed(uint64(100+i), 0)
		members = append(members, m)
	}
	return members
}

func hasBegun(t *Turn) bool {
	select {
	case <-t.Begun():
		return true
	default:
		return false
	}
}

func TestAMemberThatHasMetNoOtherTakesNoTurns(t *testing.T) {
	var l Lane
	if m := l.Join(0); m.Serialized() || m.Queue() != nil {
		t.Error("a new member takes turns")
	}
	var none *Member
	none.Lost(1, nil)
	none.Committed(2, 1)
	if turn := none.Queue(); turn != nil || none.Serialized() {
		t.Error("what is not in the lane takes turns")
	}
	var without *Turn
	without.End()
}

func TestTurnsBeginInTheOrderOfTheQueue(t *testing.T) {
	members := met(4)
	var turns []*Turn
	for _, i := range []int{2, 0, 3, 1} {
		turns = append(turns, members[i].Queue())
		if members[i].Queue() != nil {
			t.Error("a member has two turns")
		}
	}
	turns[2].End() // it leaves the queue
	turns[2].End()
	for i, turn := range turns {
		if i == 2 {
			continue
		}
		for j, other := range turns {
			if want := j <= i && j != 2; hasBegun(other) != want {
				t.Errorf("during turn %d: turn %d has begun: %t", i, j, !want)
			}
		}
		turn.End()
		turn.End() // ends no other one
	}
}

func TestATurnEndsAfterItsTimeWhichDoublesWithEachFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := met(2)
		for failures := range keepAfter + 4 {
			long, other := members[0].Queue(), members[1].Queue()
			want := time.Second << failures
			if failures == keepAfter {
				want = MaxKept
			} else if failures > keepAfter {
				want = time.Second << (failures - keepAfter - 1) // it has begun anew
			}
			time.Sleep(want - 1)
			synctest.Wait()
			if hasBegun(other) {
				t.Fatalf("after %d failures the turn ended before %v", failures, want)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if !hasBegun(other) {
				t.Fatalf("after %d failures the turn did not end after %v", failures, want)
			}
			long.End()
			other.End()
			if failures != keepAfter {
				members[0].Lost(1, nil)
			}
		}
	})
}

// A member that has lost several times keeps its turn over its next transactions.
func TestAKeptTurnLastsUntilACommit(t *testing.T) {
	for name, end := range map[string]func(m *Member, t *Turn){
		"commit":             func(m *Member, t *Turn) { m.Committed(50, 0); t.End() },
		"failure":            func(_ *Member, t *Turn) { t.End() },
		"no more for now":    func(m *Member, t *Turn) { m.Lost(1, t); m.Leave() },
		"it conflicts alone": func(m *Member, t *Turn) { m.alone = aloneMost; m.Lost(1, t) },
	} {
		t.Run(name, func(t *testing.T) {
			members := met(3)
			m := members[0]
			first := m.Queue()
			m.Lost(1, first)
			if m.Queue() == first {
				t.Fatal("it keeps its turn after one loss")
			}
			for m.losses < keepAfter-1 {
				m.Lost(1, nil)
			}
			m.turn.End()
			kept := m.Queue()
			other := members[1].Queue()
			for range 4 {
				if m.Lost(1, kept); m.Queue() != kept || m.Queue() != nil || hasBegun(other) {
					t.Fatal("it does not keep the turn for its next transaction")
				}
			}
			if end(m, kept); !hasBegun(other) || m.turn != nil {
				t.Error("the turn has not ended")
			}
			m.Leave()
		})
	}
}

// Members that have met nobody wait only for one that loses even in a turn that it keeps.
func TestAMemberThatStillLosesExcludesAll(t *testing.T) {
	members := met(1)
	m, free := members[0], members[0].lane.Join(0)
	turn := m.Queue()
	for m.losses < excludeAfter {
		if free.Queue() != nil {
			t.Fatalf("after %d losses all wait", m.losses)
		}
		m.Lost(1, turn)
		turn = m.Queue()
	}
	waits := free.Queue()
	if waits == nil || hasBegun(waits) {
		t.Fatal("a member that has met nobody does not wait")
	}
	free.Committed(77, 0) // one that runs since before
	for range aloneMost {
		m.Lost(77, turn)
		turn = m.Queue()
	}
	if m.LosesAlone() {
		t.Error("a loss to another member counts as one to nobody")
	}
	for i := range aloneMost {
		if m.LosesAlone() || m.turn != turn || hasBegun(waits) {
			t.Fatalf("after %d losses to nobody it has given up", i)
		}
		m.Lost(78, turn)
		if i < aloneMost-1 {
			turn = m.Queue()
		}
	}
	if !m.LosesAlone() || !hasBegun(waits) {
		t.Error("a member that conflicts with itself keeps its turn")
	}
	waits.End()
	if m.Lost(77, nil); m.LosesAlone() {
		t.Error("a loss to another member does not end that")
	}
	m.Committed(80, 0)
	if m.losses != 0 || m.LosesAlone() {
		t.Error("a commit does not end it")
	}
}

func TestBothMembersOfAMeetingTakeTurnsForSomeTransactions(t *testing.T) {
	var l Lane
	a, b, stranger := l.Join(0), l.Join(0), l.Join(0)
	a.Committed(1, 0)
	stranger.Committed(2, 0)
	b.Committed(3, 1) // it would have conflicted with batch 1
	if !a.Serialized() || !b.Serialized() || stranger.Serialized() {
		t.Fatal("not exactly those that have met take turns")
	}
	for n := range uint64(meeting) {
		if !a.Serialized() {
			t.Fatalf("it takes no turns after %d transactions without a conflict", n)
		}
		a.Committed(10+n, 0)
	}
	if a.Serialized() || !b.Serialized() {
		t.Error("a member still takes turns, or a transaction counts for another member")
	}
	for range 100 {
		a.Lost(3, nil)
	}
	for range mostScore {
		a.Committed(50, 0)
	}
	if a.Serialized() {
		t.Error("more meetings than are counted")
	}
}
