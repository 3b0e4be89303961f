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
		m.Lost(uint64(i + 1))
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
	none.Lost(1)
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
		for failures := range maxDoublings + 2 {
			long, other := members[0].Queue(), members[1].Queue()
			want := time.Second << min(failures, maxDoublings)
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
			members[0].Lost(1)
		}
	})
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
		a.Lost(3)
	}
	for range mostScore {
		a.Committed(50, 0)
	}
	if a.Serialized() {
		t.Error("more meetings than are counted")
	}
}
