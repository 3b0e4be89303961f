package driver

import (
	"context"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/internal/lane"
)

// UpdateOptions change how Update runs. The zero value is Engine.Update without options.
type UpdateOptions struct {
	// Retries and AllowUnsyncedDuplicates are fields of engine.UpdateOptions.
	Retries                 int
	AllowUnsyncedDuplicates bool

	// Lane makes the transaction one of the member's. If the member has recently met another one,
	// Update waits for its turn, in the order of arrival, before it runs the closure. The turn ends
	// when the transaction is applied, rejected or rolled back, when its closure panics, when its
	// context ends, or after the time that was given to JoinLane; see there for one that conflicts.
	//
	// A transaction without a lane never waits. Omit Lane where others may wait for the caller, for
	// example in an Update inside the closure of another one: with the same member such an Update
	// runs at once, with another member it waits until the turn of the outer transaction times out.
	Lane *LaneMember

	// Expected are the events of the transaction's first Prefetch. They are prepared before the
	// transaction waits for its turn (Lane), which makes the turn shorter. A closure that runs
	// again after a conflict calls Prefetch itself. The events must not be changed until Update
	// returns.
	Expected []engine.Event

	// OnPrefetched is called once, after Expected is prepared and before the transaction waits for
	// its turn, for work that needs no state, such as decoding. claimed is the result of
	// ProbablyClaimed for Expected. A panic has the same effect as one in the closure.
	OnPrefetched func(claimed []bool)
}

// Update is Engine.Update with more options.
func Update(ctx context.Context, e *engine.Engine, fn func(tx *engine.Tx) error, opt UpdateOptions) error {
	base := engine.UpdateOptions{Retries: opt.Retries, AllowUnsyncedDuplicates: opt.AllowUnsyncedDuplicates}
	return e.Driver(key).Update(ctx, fn, base, opt.Lane.lane(), opt.Expected, opt.OnPrefetched)
}

// MaxKept is how long others wait at most for a member that keeps its turn.
const MaxKept = lane.MaxKept

// A LaneMember is a caller of Update. Its transactions take turns with those of other members as
// long as they conflict, because one reads keys that another has written. Members without conflicts
// run in parallel, and so do all members at first. Use one member for each series of transactions
// that run one after the other, for example for each consumed partition. A member is safe for
// concurrent use and need not be closed. A nil member is not in a lane.
type LaneMember struct{ member *lane.Member }

// JoinLane returns a new member of the engine's lane. turn bounds how long one of its transactions
// delays the others; 0 or less is one second. A transaction that takes longer continues, but may
// then conflict with later ones, so give at least twice the time that a transaction usually takes.
// After each conflict in a row the bound is doubled. After the third one the member keeps its turn over its
// next transactions until one commits or fails otherwise, at most for MaxKept, so that a long transaction
// commits in the end; and after three more, members that have met no other one wait for it, too.
func JoinLane(e *engine.Engine, turn time.Duration) *LaneMember {
	return &LaneMember{e.Driver(key).JoinLane(turn)}
}

// Serialized reports whether the member has recently conflicted with another one, so that its next
// transaction waits for a turn. Then do work that does not need the transaction before Update,
// because others wait during the turn.
func (m *LaneMember) Serialized() bool { return m.lane().Serialized() }

// LosesAlone reports whether the member's transactions conflict again and again although all other members
// wait for them: their closures write in another transaction what they have read, or a caller without a lane
// writes it that often. Such a member keeps no turn until it has committed.
func (m *LaneMember) LosesAlone() bool { return m.lane().LosesAlone() }

// Await waits for the turn of the member's next transaction, if it takes turns, and leaves it to that
// transaction. If it has to wait, it calls onWait before, and an error of that ends the call. It is for what
// must not happen long before the transaction runs. The turn is as long as any: if it is over before Update is
// called, Update waits for another one. Leave gives it back.
func (m *LaneMember) Await(ctx context.Context, e *engine.Engine, onWait func() error) error {
	return e.Driver(key).AwaitTurn(ctx, m.lane(), onWait)
}

// Leave ends the turn that the member has kept, after a conflict or Await. Call it when the transaction is not run
// again for now.
func (m *LaneMember) Leave() { m.lane().Leave() }

func (m *LaneMember) lane() *lane.Member {
	if m == nil {
		return nil
	}
	return m.member
}
