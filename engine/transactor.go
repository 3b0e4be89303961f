package engine

import (
	"context"
	"errors"

	"github.com/hapax-dev/hapax/engine/internal/lane"
	"github.com/hapax-dev/hapax/engine/internal/occ"
)

// A transactor begins, commits and ends transactions.
type transactor struct {
	core     *core
	finder   *finder
	queue    *queue
	reserved occ.Reservations
	history  occ.History
	lane     lane.Lane
	sums     *sums
	outbox   outbox
	reused   txSpares
}

// begin begins a transaction.
func (t *transactor) begin() *Tx {
	tx := t.newTx()
	tx.req.claimant = t.reserved.Claimant(&tx.owner)
	t.history.Begin(&tx.req.reads)
	return tx
}

// newTx returns an empty transaction, for Update or for a part.
func (t *transactor) newTx() *Tx {
	req := t.reused.newTx()
	tx := &Tx{e: t, req: req, status: txStatus{core: t.core, live: true}}
	tx.state = txState{core: t.core, status: &tx.status, history: &t.history, req: req}
	tx.judge = txJudge{core: t.core, finder: t.finder, txFinder: txFinder{core: t.core, finder: t.finder, status: &tx.status, reserved: &t.reserved, spares: &t.reused, req: req}}
	return tx
}

// awaitTurn waits for a turn if the member takes turns and neither has nor awaits one already. The
// turn ends as soon as the batch is applied, before it is durable, so that the next transaction
// runs during the sync.
func (t *transactor) awaitTurn(ctx context.Context, member *lane.Member) (*lane.Turn, error) {
	turn := member.Queue()
	if turn == nil {
		return nil, nil
	}
	if err := t.await(ctx, turn); err != nil {
		return nil, err
	}
	return turn, nil
}

// await waits until a turn begins. If it returns an error, the turn has ended.
func (t *transactor) await(ctx context.Context, turn *lane.Turn) (err error) {
	if turn.HasBegun() {
		return nil
	}
	select {
	case <-turn.Begun():
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-t.core.work.Done():
		err = ErrClosed
	case <-t.core.stopped:
		err = t.core.Err()
	}
	turn.End()
	return err
}

// commit hands the transaction to the committer and waits until it is durable. If the error wraps
// errLeft, the committer may still refer to the transaction until its ticket is done, and the call
// has not ended (core.leave).
func (t *transactor) commit(ctx context.Context, tx *Tx) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := tx.lockStore(); err != nil {
		return err
	}
	defer func() {
		if !errors.Is(err, errLeft) {
			t.core.leave()
		}
	}()
	r := tx.req
	tx.status.live = false
	r.reads.MergeScans()
	tx.status.mu.Unlock()
	if len(r.claims.set.claims) == 0 && len(r.writes.list) == 0 {
		if by, _ := t.history.Overtaken(&r.reads); tx.judge.sawClaims && by > 0 {
			tx.status.lostTo, tx.status.lostBy = by, by
			return conflictOver(t.history.OvertakenKey(&r.reads))
		}
		tx.turn.End()
		return t.core.settleContext(ctx) // until its reads and results are durable
	}
	if err := t.sums.lookUp(t.core, &r.writes); err != nil {
		return err
	}
	r.member, r.turn = tx.member, tx.turn
	if err = t.queue.submit(ctx, r); !errors.Is(err, errLeft) {
		tx.status.lostTo, tx.status.lostBy = r.lostTo, r.lostBy
	}
	return err
}

// afterLoss waits, after a conflict, until the conflicting batch is visible, so that the
// transaction does not conflict with it again.
func (t *transactor) afterLoss(ctx context.Context, tx *Tx) {
	tx.status.mu.Lock()
	to, by, turn := tx.status.lostTo, tx.status.lostBy, tx.turn
	if to > 0 {
		tx.turn = nil // the member may keep it
	}
	tx.status.mu.Unlock()
	if to == 0 {
		return
	}
	tx.member.Lost(by, turn)
	t.core.applied.waitContext(ctx, to) // false: ctx has ended, or the engine has stopped, as the next call says
}

// end ends the transaction and releases its reservations. Further calls do nothing.
func (t *transactor) end(tx *Tx) {
	tx.status.mu.Lock()
	tx.status.live = false
	tx.status.mu.Unlock()
	t.endParts(tx)
	tx.status.mu.Lock()
	defer tx.status.mu.Unlock()
	if tx.req == nil {
		return
	}
	tx.turn.End()
	tx.req.writes.reset() // no longer read
	tx.judge.txFinder.undo(progress{})
	t.history.End(&tx.req.reads)
	t.free(tx)
}

// free recycles the memory of an ended transaction.
func (t *transactor) free(tx *Tx) {
	t.core.counters.attempts.add(&tx.judge.attempts)
	t.reused.freeTx(tx.req)
	tx.req, tx.state.req, tx.judge.txFinder.req = nil, nil, nil
	if tx.judge.ahead != nil {
		t.reused.freeAhead(tx.judge.ahead)
		tx.judge.ahead = nil
	}
}
