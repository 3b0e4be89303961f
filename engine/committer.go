package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A group is what one batch of the store carries and who waits for it. It is the committer's until
// it is handed over, then the applier's, then the releaser's.
type group struct {
	batch   storage.Batch
	changes bool // the batch is to be applied
	journal journalWriter
	records []byte // arena of the batch's records

	requests []*request
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
			if r.control == nil {
				r = e.gather(g, r)
				continue
			}
			e.applied.wait(e.seq) // false: the engine has stopped, which admitControl sees
			e.admitControl(g, r)
			e.hand(g)
			r = nil
		}
	}
}

// gather admits the request and those that wait behind it, as far as they fit into one batch, and
// hands the group to the applier; as long as that one is busy, more is admitted. A control request
// ends the group: it is returned, not yet admitted.
func (e *Engine) gather(g *group, r *request) (control *request) {
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
			if !ok || next.control != nil {
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

func (e *Engine) admitControl(g *group, r *request) {
	g.requests = append(g.requests, r)
	if r.err = e.Err(); r.err == nil {
		r.err = r.control(g)
	}
}

// admit decides a request, and puts what follows from it into the group.
func (e *Engine) admit(g *group, r *request) {
	g.requests = append(g.requests, r)
	if r.err = e.Err(); r.err != nil {
		return
	}
	if r.tx == nil {
		r.err = e.admitOwn(g, r)
		return
	}
	if r.err = e.admitTx(g, r); errors.Is(r.err, ErrConflict) { // it rests on nothing that has to be durable
		r.tx.lostTo = e.pending(g)
		g.requests = g.requests[:len(g.requests)-1]
		r.done <- struct{}{}
	}
}

// pending is the newest batch in which there is something: the group's own or the one before it.
func (e *Engine) pending(g *group) uint64 {
	if len(g.batch.Claims) > 0 || len(g.batch.State) > 0 {
		return e.seq + 1
	}
	return e.seq
}

func (e *Engine) admitOwn(g *group, r *request) error {
	for i := range r.claims {
		c := &r.claims[i]
		key := r.key(&c.place)
		if c.change != nil {
			if err := e.admitChange(g, r, c); err != nil {
				return err
			}
			continue
		}
		if c.week < e.decidedOldest(c.scope) {
			*c.result = Result{Verdict: TooOld}
			continue
		}
		var old, rec Record
		var there, found bool
		var err error
		held := e.tx.reserved(key)
		if !held {
			old, there, err = e.decide(key, c)
			rec, found = old, there && !c.takes(&old)
		}
		if err == nil && !found && c.nearEnd > c.nearAt { // a claim in another week comes before a reservation
			inFlight := held
			rec, found, held, err = e.decideNear(r, c)
			held = held || inFlight
		}
		if err != nil {
			return err
		}
		if found {
			*c.result = c.answer(&rec)
			continue
		}
		if held {
			*c.result = Result{Verdict: InFlight}
			continue
		}
		rec = newRecord(c.event, c.seen)
		if c.again = there; there {
			rec.Generation = old.Generation + 1
		}
		if err := e.claim(g, key, c, &rec); err != nil {
			*c.result = Result{Verdict: Failed, Err: err}
			continue
		}
		if there && old.State == DeadLettered {
			e.tx.changed(key, e.seq+1)
		}
		*c.result = Result{Verdict: Claimed, Record: rec, Lease: newLease(c.event, &rec, c.seen)}
	}
	return nil
}

// decide says whether the claim exists, in this group or before it, and marks it in the filter. It
// is the only place in which an event is found to be new.
func (e *Engine) decide(key []byte, c *candidate) (Record, bool, error) {
	if e.screen.add(c.week, c.hash) {
		e.screen.negatives.Add(1)
		return Record{}, false, nil
	}
	rec, found, err := e.find(key, c.hash)
	if err == nil && !found && e.screen.trusted.Load() {
		e.screen.falsePositives.Add(1)
	}
	return rec, found, err
}

// find returns the claim that is in this group or before it, without a look at the filter.
func (e *Engine) find(key []byte, hash uint64) (Record, bool, error) {
	if rec, put := e.put.find(key, hash); put {
		return rec, rec.State != 0, nil
	}
	return e.read(key)
}

// claim puts a claim with the given record into the group, or the record of its next life. It
// fails, with nothing added, if scope or topic is one name too many.
func (e *Engine) claim(g *group, key []byte, c *candidate, rec *Record) error {
	scope, topic, err := e.refs(g, c.scope, rec.Origin.Topic, c.week)
	if err != nil {
		return err
	}
	at := len(g.records)
	g.records = appendRecord(g.records, rec, topic)
	g.batch.Claims = append(g.batch.Claims, storage.ClaimWrite{Key: key, Record: g.records[at:len(g.records):len(g.records)]})
	g.claims++
	g.bytes += len(key) + len(g.records) - at
	e.put.add(key, c.hash, *rec)
	if c.again {
		return nil // it was counted, and its hash noted, when it was made
	}
	ref := bucketRef{scope, c.week}
	g.journal.add(ref, journalPut, c.hash)
	e.screen.put(ref, c.hash)
	return nil
}

// refs returns the numbers of a scope and a topic for a claim in a week.
func (e *Engine) refs(g *group, scope, topic string, week weekbucket.Week) (s, t uint64, err error) {
	if s, g.batch.State, err = e.names.ref(scope, asScope, week, g.batch.State); err != nil {
		return 0, 0, err
	}
	t, g.batch.State, err = e.names.ref(topic, asTopic, week, g.batch.State)
	return s, t, err
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
		if r.tx != nil {
			r.tx.turn.end()
		}
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
			if r.tx != nil && r.err == nil {
				r.tx.durable()
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
		if err != nil && r.err == nil {
			r.err = err
		}
		r.done <- struct{}{}
	}
	if err != nil {
		return
	}
	if g.wait != nil && e.opt.Observer != nil {
		e.opt.Observer.Synced(g.took, g.claims)
	}
}
