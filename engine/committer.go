package engine

import (
	"fmt"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A group is what one batch of the store carries and who waits for it. It is the committer's until
// it is handed over, then the applier's, then the releaser's.
type group struct {
	batch   storage.Batch
	changes bool // the batch is to be applied
	journal journalWriter
	records []byte // arena of the batch's records

	requests []request
	claims   int      // put by this batch
	bytes    int      // of keys and state
	produced bool     // entries of the outbox are in the batch
	after    []func() // run by the releaser once the batch is durable, before any caller gets an answer

	tried bool         // the batch was handed to the store
	wait  func() error // the store's, nil if nothing was applied
	since time.Time
	took  time.Duration // from since until it was durable
	seq   uint64        // of the newest batch that the group's answers may rest on
}

const (
	maxGroupClaims = MaxBatchEvents // a group is closed once it has the given number of claims, or
	maxGroupBytes  = 4 << 20        // the given number of bytes of keys and state
	groupsAhead    = 2              // batches applied and not yet durable; more only make the groups smaller
	groups         = groupsAhead + 2
)

func (g *group) full() bool { return g.claims >= maxGroupClaims || g.bytes >= maxGroupBytes }

func (g *group) reset() {
	clear(g.batch.Claims)
	clear(g.batch.State)
	clear(g.requests)
	clear(g.after)
	g.journal.reset()
	*g = group{
		batch:    storage.Batch{Claims: g.batch.Claims[:0], State: g.batch.State[:0], Journal: g.batch.Journal[:0]},
		journal:  g.journal,
		records:  g.records[:0],
		requests: g.requests[:0],
		after:    g.after[:0],
	}
}

// commitLoop is the committer. It ends when requests is closed.
func (e *Engine) commitLoop(free <-chan *group) {
	defer e.loops.Done()
	defer close(e.batches)
	for r := range e.requests {
		for r != nil {
			g := <-free
			e.put.next()
			if _, alone := r.(*command); !alone {
				r = e.gather(g, r)
				continue
			}
			e.applied.wait(e.seq) // false: the engine has stopped, which admit sees
			e.admit(g, r)
			e.hand(g)
			r = nil
		}
	}
}

// gather admits the request and those that wait behind it, as far as they fit into one batch, and
// hands the group to the applier; as long as that one is busy, more is admitted. A command ends
// the group: it is returned, not yet admitted.
func (e *Engine) gather(g *group, r request) (next request) {
	e.admit(g, r)
	for {
		requests, batches := e.requests, e.batches
		if len(requests) > 0 && !g.full() {
			batches = nil // first those that wait
		}
		if g.full() {
			requests = nil
		}
		e.seal(g)
		changes, claims := g.changes, g.claims
		select {
		case batches <- g:
			e.handed(changes, claims)
			return nil
		case next, ok := <-requests:
			if _, alone := next.(*command); !ok || alone {
				e.hand(g)
				return next
			}
			e.admit(g, next)
		}
	}
}

// seal numbers the group's batch.
func (e *Engine) seal(g *group) {
	g.changes = (len(g.batch.Claims) > 0 || len(g.batch.State) > 0) && e.Err() == nil
	g.seq = e.seq
	if g.changes {
		g.seq++
		g.batch.Seq = g.seq
	}
}

// hand gives the group to the applier.
func (e *Engine) hand(g *group) {
	e.seal(g)
	changes, claims := g.changes, g.claims
	e.batches <- g
	e.handed(changes, claims)
}

func (e *Engine) handed(changes bool, claims int) {
	if !changes {
		return
	}
	e.seq++
	e.sinceSnap += uint64(claims) + 1 // the journal has an entry for each batch
	e.maybeSnapshot()
}

// admit decides a request, and puts what follows from it into the group.
func (e *Engine) admit(g *group, r request) {
	g.requests = append(g.requests, r)
	t := r.slip()
	if t.err = e.Err(); t.err == nil && !r.admit(e, g) {
		g.requests = g.requests[:len(g.requests)-1]
		t.done <- struct{}{}
	}
}

// pending is the newest batch in which there is something: the group's own or the one before it.
func (e *Engine) pending(g *group) uint64 {
	if len(g.batch.Claims) > 0 || len(g.batch.State) > 0 {
		return e.seq + 1
	}
	return e.seq
}

// applyLoop is the applier. It ends when batches is closed.
func (e *Engine) applyLoop() {
	defer e.loops.Done()
	defer close(e.groups)
	for g := range e.batches {
		if g.changes && e.Err() == nil {
			e.apply(g)
		}
		e.groups <- g
	}
}

// apply hands the group's batch to the store.
func (e *Engine) apply(g *group) {
	g.batch.Journal = g.journal.appendTo(g.batch.Journal)
	g.since = time.Now()
	g.tried = true
	e.applying.Store(g.batch.Seq)
	wait, err := e.store.Apply(&g.batch)
	if err != nil {
		_ = e.stop(err) // the releaser returns it
		return
	}
	g.wait = wait
	e.applied.raise(g.batch.Seq)
	for _, r := range g.requests {
		r.applied()
	}
}

// releaseLoop is the releaser. It ends when groups is closed.
func (e *Engine) releaseLoop(free chan<- *group) {
	defer e.loops.Done()
	for g := range e.groups {
		e.release(g)
		g.reset()
		free <- g
	}
}

// release waits until the group is durable and lets its answers go, duplicates included.
func (e *Engine) release(g *group) {
	err := e.Err()
	if g.wait != nil {
		if werr := g.wait(); werr != nil && err == nil {
			err = e.stop(werr)
		}
	}
	g.took = time.Since(g.since)
	if err == nil {
		for _, f := range g.after {
			f()
		}
		for _, r := range g.requests {
			if r.slip().err == nil {
				r.durable()
			}
		}
		e.durable.raise(g.seq)
		if g.produced {
			e.outbox.durable()
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
	if g.wait != nil && e.opt.Observer != nil {
		e.opt.Observer.Synced(g.took, g.claims)
	}
}
