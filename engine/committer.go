package engine

import (
	"time"

	"github.com/hapax-dev/hapax/weekbucket"
)

// A group is what one batch of the store carries and who waits for it.
type group struct {
	batch   Batch
	journal journalWriter
	records []byte // arena of the batch's records

	requests   []*request
	claims     []newClaim       // put by this batch
	stateBytes int              // written by transactions
	pending    map[uint64]int32 // hash to index in claims, of claims put by this batch
	after      []func()         // run by the releaser once the batch is durable, before anybody is told

	wait  func() error // the store's, nil if nothing was applied
	since time.Time
	seq   uint64
}

// A newClaim is a claim that its batch puts. Its key outlives the request.
type newClaim struct {
	key    string
	hash   uint64
	record Record
}

const (
	maxGroupClaims = MaxBatchEvents // a group is closed once it has so many claims, or
	maxGroupBytes  = 4 << 20        // so many bytes of state
	groupsAhead    = 2              // batches handed to the store and not yet durable; more only make the groups smaller
)

func newGroup() *group { return &group{pending: make(map[uint64]int32)} }

func (g *group) reset() {
	clear(g.batch.Claims)
	clear(g.batch.State)
	clear(g.claims)
	clear(g.requests)
	clear(g.after)
	clear(g.pending)
	g.journal.reset()
	*g = group{
		batch:    Batch{Claims: g.batch.Claims[:0], State: g.batch.State[:0], Journal: g.batch.Journal[:0]},
		journal:  g.journal,
		records:  g.records[:0],
		requests: g.requests[:0],
		claims:   g.claims[:0],
		pending:  g.pending,
		after:    g.after[:0],
	}
}

// commitLoop is the committer. It ends when requests is closed.
func (e *Engine) commitLoop(free <-chan *group) {
	defer e.loops.Done()
	defer close(e.groups)
	for r := range e.requests {
		g := <-free
		if r.control == nil {
			r = e.gather(g, r)
			e.apply(g)
			if r == nil {
				continue
			}
			g = <-free
		}
		e.admitControl(g, r)
		e.apply(g)
	}
}

// gather admits the request and those that wait behind it, as far as they fit into one batch. A control request ends
// the group: it is returned, not yet admitted.
func (e *Engine) gather(g *group, r *request) (control *request) {
	for {
		e.admit(g, r)
		if len(g.claims) >= maxGroupClaims || g.stateBytes >= maxGroupBytes {
			return nil
		}
		select {
		case next, ok := <-e.requests:
			if !ok {
				return nil
			}
			if next.control != nil {
				return next
			}
			r = next
		default:
			return nil
		}
	}
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
	if r.tx != nil {
		r.err = e.admitTx(g, r)
	} else {
		r.err = e.admitOwn(g, r)
	}
}

func (e *Engine) admitOwn(g *group, r *request) error {
	for i := range r.claims {
		c := &r.claims[i]
		key := r.key(c)
		if c.week < e.decideOld {
			*c.result = Result{Verdict: TooOld}
			continue
		}
		if e.tx.reserved(key) {
			*c.result = Result{Verdict: InFlight}
			continue
		}
		rec, found, err := e.decide(g, key, c)
		if err != nil {
			return err
		}
		if found {
			*c.result = Result{Verdict: Duplicate, Record: rec}
			continue
		}
		rec, err = e.put(g, key, c)
		if err != nil {
			*c.result = Result{Verdict: Failed, Err: err}
			continue
		}
		*c.result = Result{Verdict: Claimed, Record: rec}
	}
	return nil
}

// decide says whether the claim exists, in this group or before it, and marks it in the filter. It is the only place
// in which an event is found to be new.
func (e *Engine) decide(g *group, key []byte, c *candidate) (Record, bool, error) {
	if e.screen.add(c.week, c.hash) {
		e.screen.negatives.Add(1)
		return Record{}, false, nil
	}
	if n := g.find(key, c.hash); n != nil {
		return n.record, true, nil
	}
	rec, found, err := e.read(key)
	if err == nil && !found && e.screen.trusted.Load() {
		e.screen.falsePositives.Add(1)
	}
	return rec, found, err
}

// find returns the claim that this group puts under the key.
func (g *group) find(key []byte, hash uint64) *newClaim {
	i, ok := g.pending[hash]
	if !ok {
		return nil
	}
	if g.claims[i].key == string(key) {
		return &g.claims[i]
	}
	for i := range g.claims { // another key with the same 64-bit hash
		if g.claims[i].key == string(key) {
			return &g.claims[i]
		}
	}
	return nil
}

// put adds a claim to the group. It fails, with no claim added, if scope or topic is one name too many.
func (e *Engine) put(g *group, key []byte, c *candidate) (Record, error) {
	scope, topic, err := e.refs(g, c.event)
	if err != nil {
		return Record{}, err
	}
	rec := Record{State: Done, FirstSeen: c.seen.Truncate(time.Millisecond), Origin: c.event.Origin}
	at := len(g.records)
	g.records = appendRecord(g.records, &rec, topic)
	g.batch.Claims = append(g.batch.Claims, ClaimWrite{Key: key, Record: g.records[at:len(g.records):len(g.records)]})
	if _, ok := g.pending[c.hash]; !ok {
		g.pending[c.hash] = int32(len(g.claims))
	}
	g.claims = append(g.claims, newClaim{string(key), c.hash, rec})
	ref := bucketRef{scope, c.week}
	g.journal.add(ref, journalPut, c.hash)
	e.screen.put(ref, c.hash)
	return rec, nil
}

// refs returns the numbers of an event's scope and topic.
func (e *Engine) refs(g *group, ev *Event) (scope, topic uint64, err error) {
	if scope, g.batch.State, err = e.names.ref(ev.Scope, g.batch.State); err != nil {
		return 0, 0, err
	}
	topic, g.batch.State, err = e.names.ref(ev.Origin.Topic, g.batch.State)
	return scope, topic, err
}

// apply hands the group's batch to the store and the group to the releaser.
func (e *Engine) apply(g *group) {
	if (len(g.batch.Claims) > 0 || len(g.batch.State) > 0) && e.Err() == nil {
		g.batch.Seq = e.seq + 1
		g.batch.Journal = g.journal.appendTo(g.batch.Journal)
		g.since = time.Now()
		e.applying.Store(g.batch.Seq)
		wait, err := e.store.Apply(&g.batch)
		if err != nil {
			err = e.stop(err)
			wait = func() error { return err }
		} else {
			e.seq = g.batch.Seq
			e.applied.Store(e.seq)
			e.sinceSnap += uint64(len(g.claims))
		}
		g.wait = wait
	}
	g.seq = e.seq
	e.maybeSnapshot()
	e.groups <- g
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
	e.recent.add(g.claims)
	if g.wait != nil && e.opt.Observer != nil {
		e.opt.Observer.Synced(time.Since(g.since), len(g.claims))
	}
}

func (e *Engine) setOldest(week weekbucket.Week) { e.oldest.Store(uint32(week)) }
