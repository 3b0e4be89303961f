package engine

import (
	"context"
	"time"

	"github.com/hapax-dev/hapax/engine/internal/bridge"
	"github.com/hapax-dev/hapax/engine/internal/lane"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// Driver is for package engine/driver, whose functions only the packages of this module need. It
// panics if an application calls it, since an application cannot make a Key.
//
//nolint:revive // only driver calls it, and needs no name of the type
func (e *Engine) Driver(key bridge.Key) driverEngine {
	key.Check()
	return driverEngine{e}
}

// Driver is for package engine/driver, like Engine.Driver.
//
//nolint:revive // only driver calls it, and needs no name of the type
func (tx *Tx) Driver(key bridge.Key) driverTx {
	key.Check()
	return driverTx{tx}
}

// The methods of driverEngine and driverTx are the functions of driver with the same names.
type driverEngine struct{ e *Engine }

// JoinLane is driver.JoinLane.
func (d driverEngine) JoinLane(turn time.Duration) *lane.Member {
	return d.e.transactor.lane.Join(turn)
}

// Update is driver.Update.
func (d driverEngine) Update(ctx context.Context, fn func(tx *Tx) error, opt UpdateOptions, member *lane.Member, expected []Event, onPrefetched func(claimed []bool)) error {
	return d.e.update(ctx, fn, opt, beforeTurn{member, expected, onPrefetched})
}

// AwaitTurn is driver.LaneMember.Await.
func (d driverEngine) AwaitTurn(ctx context.Context, member *lane.Member, onWait func() error) error {
	turn := member.Queue()
	if turn == nil {
		return nil
	}
	if !turn.HasBegun() {
		if err := onWait(); err != nil {
			turn.End()
			return err
		}
	}
	err := d.e.transactor.await(ctx, turn)
	turn.Keep()
	return err
}

// Own is driver.Own.
func (d driverEngine) Own(owner keyspace.Space, group string, holds func() (names []string, complete bool), instead string) (release func()) {
	return d.e.core.ownerships.own(ownership{owner, group, holds, instead})
}

// OnProduced is driver.OnProduced.
func (d driverEngine) OnProduced(fn func()) (stop func()) { return d.e.transactor.outbox.watch(fn) }

// Prefix returns the first bytes of the state keys of a space.
func (d driverEngine) Prefix(space keyspace.Space) []byte { return spacePrefix(space) }

// Keys returns the keys of the space with that prefix.
func (d driverEngine) Keys(prefix []byte) spaceKeys { return spaceKeys{&d.e.core, prefix} }

type driverTx struct{ tx *Tx }

// As is driver.As.
func (d driverTx) As(space keyspace.Space) ownerTx {
	mustOwn(space)
	return ownerTx{d.tx, space}
}

// Prefix returns the first bytes of the state keys of a space.
func (d driverTx) Prefix(space keyspace.Space) []byte { return spacePrefix(space) }

// Keys returns the keys of the space, which has that prefix.
func (d driverTx) Keys(prefix []byte, space keyspace.Space) txSpaceKeys {
	return txSpaceKeys{d.tx.keys(), prefix, space}
}

// BeginSubTx is driver.BeginSubTx. It returns the part's transaction.
func (d driverTx) BeginSubTx() (*Tx, error) { return d.tx.beginPart() }

// EndSubTx is driver.SubTx.Join or Discard, called on the part's transaction.
func (d driverTx) EndSubTx(join bool) error {
	if d.tx == nil {
		return ErrNoTransaction
	}
	return d.tx.part.end(join)
}

// Prefetch is driver.Prefetch.
func (d driverTx) Prefetch(events []Event) error { return d.tx.prefetch(events) }

// ProbablyClaimed is driver.ProbablyClaimed.
func (d driverTx) ProbablyClaimed() ([]bool, error) { return d.tx.probablyClaimed() }

// Unclaim is driver.Unclaim.
func (d driverTx) Unclaim(ev Event, rec ClaimRecord) error { return d.tx.unclaim(ev, rec) }
