package engine

import (
	"fmt"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine/internal/filters"
)

// A committer runs the three goroutines that process requests: the committer, the applier and the
// releaser (see the package comment).
type committer struct {
	core     *core
	decider  *decider
	requests <-chan request
	batches  chan *group // from the committer to the applier, in order
	groups   chan *group // from the applier to the releaser, in order
	loops    sync.WaitGroup
	snaps    *filters.Snapshots
}

func (c *committer) init(core *core, requests <-chan request, d *decider, s *filters.Snapshots) {
	c.core, c.decider, c.requests, c.snaps = core, d, requests, s
	c.batches, c.groups = make(chan *group), make(chan *group, groupsAhead)
}

// start starts the goroutines. They end when requests is closed.
func (c *committer) start() {
	free := make(chan *group, groups)
	for range cap(free) {
		free <- new(group)
	}
	c.loops.Add(3)
	go c.commitLoop(free)
	go c.applyLoop()
	go c.releaseLoop(free)
}

// commitLoop is the committer. It ends when requests is closed.
func (c *committer) commitLoop(free <-chan *group) {
	defer c.loops.Done()
	defer close(c.batches)
	for r := range c.requests {
		for r != nil {
			g := <-free
			c.decider.put.next(c.decider.seq)
			if _, alone := r.(*command); !alone {
				r = c.gather(g, r)
				continue
			}
			c.core.applied.wait(c.decider.seq) // false if the engine has stopped; admit detects that
			c.admit(g, r)
			g.batch.Control = true
			c.hand(g)
			r = nil
		}
	}
}

// gather admits the request and those that wait behind it, as far as they fit into one batch, and
// hands the group to the applier. While the applier is busy, or the group expects another part of a
// batch, it admits more. A command ends the group: gather returns it without admitting it.
func (c *committer) gather(g *group, r request) (next request) {
	c.admit(g, r)
	for {
		requests, batches := c.requests, c.batches
		if !g.full() && (len(requests) > 0 || g.expects()) {
			batches = nil // first admit those that already wait, and the rest of a batch
		}
		if g.full() {
			requests = nil
		}
		c.seal(g)
		changes, claims := g.changes, g.claims
		select {
		case batches <- g:
			c.handed(changes, claims)
			return nil
		case next, ok := <-requests:
			if _, alone := next.(*command); !ok || alone {
				c.hand(g)
				return next
			}
			c.admit(g, next)
		}
	}
}

// seal numbers the group's batch.
func (c *committer) seal(g *group) {
	g.changes = (len(g.batch.Claims) > 0 || len(g.batch.State) > 0) && c.core.Err() == nil
	g.seq = c.decider.seq
	if g.changes {
		g.seq++
		g.batch.Seq = g.seq
	}
}

// hand gives the group to the applier.
func (c *committer) hand(g *group) {
	c.seal(g)
	changes, claims := g.changes, g.claims
	c.batches <- g
	c.handed(changes, claims)
}

func (c *committer) handed(changes bool, claims int) {
	if !changes {
		return
	}
	c.decider.seq++
	if c.core.Err() == nil {
		c.snaps.Decided(c.decider.seq, claims)
	}
}

// admit decides a request and adds its effects to the group.
func (c *committer) admit(g *group, r request) {
	g.requests = append(g.requests, r)
	if own, ok := r.(*ownClaims); !ok || !own.more {
		g.awaited = true
	}
	t := r.slip()
	t.err = c.core.Err()
	if t.err == nil && c.hasLeft(r) {
		t.err = errLeft
	} else if t.err != nil || c.decider.decide(g, r) {
		return
	}
	g.requests = g.requests[:len(g.requests)-1]
	c.settled(r)
	t.done <- struct{}{}
}

// hasLeft reports whether the caller of a request has left. If not, the caller of a transaction or
// a command can no longer leave.
func (c *committer) hasLeft(r request) bool {
	t := r.slip()
	if _, own := r.(*ownClaims); own {
		return t.state.Load() == left
	}
	return !t.state.CompareAndSwap(waiting, decided)
}

// settled records that the caller of a request can no longer leave, or has left.
func (c *committer) settled(r request) {
	if own, ok := r.(*ownClaims); ok && own.leavable {
		c.core.left.leavable.Add(-1)
	}
}

// applyLoop is the applier. It ends when batches is closed.
func (c *committer) applyLoop() {
	defer c.loops.Done()
	defer close(c.groups)
	for g := range c.batches {
		if g.changes && c.core.Err() == nil {
			c.apply(g)
		}
		c.groups <- g
	}
}

// apply hands the group's batch to the store.
func (c *committer) apply(g *group) {
	g.batch.Journal = g.journal.AppendTo(g.batch.Journal)
	g.since = time.Now()
	g.tried = true
	c.core.applying.Store(g.batch.Seq)
	wait, err := c.core.writes.Apply(&g.batch)
	if err != nil {
		_ = c.core.stop(err) // the releaser returns it
		return
	}
	g.wait = wait
	c.core.applied.raise(g.batch.Seq)
	for _, r := range g.requests {
		if tx, ok := r.(*txRequest); ok {
			tx.turn.End()
		}
	}
}

// releaseLoop is the releaser. It ends when groups is closed.
func (c *committer) releaseLoop(free chan<- *group) {
	defer c.loops.Done()
	for g := range c.groups {
		c.release(g)
		g.reset()
		free <- g
	}
}

// answer makes the verdicts of the group's claims final. If they are durable, it records the claims
// whose callers have left.
func (c *committer) answer(g *group, durable bool) {
	for _, r := range g.requests {
		own, ok := r.(*ownClaims)
		if !ok {
			continue
		}
		if !own.ticket.state.CompareAndSwap(waiting, answered) && durable && own.ticket.err == nil && !own.withdrawn {
			for i := range own.set.claims {
				if x := &own.set.claims[i]; x.claimed() {
					c.core.left.add(own.set.key(&x.place), x.place.hash)
					c.decider.finder.cache.forget(x.place.hash)
				}
			}
		}
		c.settled(r)
	}
}

// release waits until the group is durable, then releases its answers, duplicates included.
func (c *committer) release(g *group) {
	err := c.core.Err()
	if g.wait != nil {
		if werr := g.wait(); werr != nil && err == nil {
			err = c.core.stop(werr)
		}
	}
	g.took = time.Since(g.since)
	if err == nil {
		for _, f := range g.after {
			f()
		}
		for _, r := range g.requests {
			if tx, ok := r.(*txRequest); ok && tx.ticket.err == nil {
				tx.release(tx.claims.set.claims) // before any caller gets an answer about the claims
				clear(tx.claims.set.claims)
				tx.claims.set.claims = tx.claims.set.claims[:0]
			}
		}
	}
	c.answer(g, err == nil)
	if err == nil {
		c.core.durable.raise(g.seq)
		if g.produced {
			c.decider.outbox.durable()
		}
	}
	if err != nil && g.tried {
		err = fmt.Errorf("%w; %w", err, ErrOutcomeUnknown)
	}
	for _, r := range g.requests {
		t := r.slip()
		if err != nil && t.err == nil {
			t.err = err
		}
		t.done <- struct{}{}
	}
	if err != nil {
		return
	}
	if g.wait != nil && c.core.opt.Observer != nil {
		c.core.opt.Observer.Synced(g.took, g.claims)
	}
}
