package outbox

import (
	"context"
	"iter"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/entry"
)

// maxHeld is the maximum number of groups that wait for a backoff. Beyond it, no new message is
// published until some of them are.
const maxHeld = 1 << 17

// probes is how many new entries a batch may try, in addition to those whose backoff has ended,
// while the broker seems to be unreachable.
const probes = 10

// One message of each ordering key is in flight at a time, so a batch lasts as long as the longest
// chain of messages with one key. So a batch of single messages takes at most one in keyShare of
// its entries from one key. Further entries of the key wait in memory while others are taken, up to
// maxAhead entries and maxAheadBytes.
const (
	keyShare      = 10
	maxAhead      = 1 << 14
	maxAheadBytes = 16 << 20
)

// lookAllEvery is the time in milliseconds after which the delayed entries are read from the first
// one again.
const lookAllEvery = 5000

// A queue is the view of the outbox that the relay with the lease has. load rebuilds its state in
// memory.
//
// The keys of ready entries are in the order of commits. So all new entries come after the cursor,
// and no scan passes keys that were deleted before. An entry that fails moves to its group among
// the held entries, and later entries of its group follow it there, so that the cursor skips
// nothing.
type queue struct {
	eng *engine.Engine

	// key of the last ready entry that was taken; all entries up to it are removed, held, or in
	// left
	cursor  []byte
	left    []*item             // entries that were taken and are neither published nor held yet, in the order of each group
	delayed map[string]struct{} // keys of the delayed entries in left and in the batch
	groups  map[entry.Group]*group
	backoff backoffs
	later   int64 // due time of the first entry that is not due yet, 0 if there is none
	now     int64 // when entries were last collected, 0 after load

	// Entries that become due are also taken in the order of their keys. But a transaction that
	// commits after the due time of its message adds an entry before dueCursor, and so does
	// Redrive. So the scan starts at the first key again at intervals, and after a Redrive of the
	// same relay.
	dueCursor []byte
	lookAll   int64 // when the next scan from the first of them is due

	// apart: exactly once, where retries and new entries are in separate batches, in turn.
	// newFirst: the next batch takes new entries first.
	apart, newFirst bool

	outage bool  // nothing of the last batch was published, because the broker could not be reached
	probe  int64 // during an outage, when new entries are tried even if no backoff has ended
}

func newQueue(s *shared) *queue { return &queue{eng: s.eng, apart: s.opt.ExactlyOnce != nil} }

// load reads the held entries. No ready entry has a key up to cursor.
func (q *queue) load(ctx context.Context, cursor []byte) error {
	*q = queue{eng: q.eng, apart: q.apart, cursor: cursor, groups: make(map[entry.Group]*group), delayed: make(map[string]struct{})}
	for kv, err := range q.scan(ctx, entry.HeldPrefix, nil) {
		if err != nil {
			return err
		}
		id, place, err := entry.ParseHeldKey(kv.Key)
		if err != nil {
			return damaged(err)
		}
		if g := q.groups[id]; g != nil {
			g.next = place + 1
			continue
		}
		e, err := parse(kv)
		if err != nil {
			return err
		}
		q.add(&group{id: id, first: place, next: place + 1, notBefore: e.NotBefore, due: e.Due})
	}
	return nil
}

func (q *queue) scan(ctx context.Context, prefix, after []byte) iter.Seq2[engine.KeyValue, error] {
	return driver.In(q.eng, entry.Space).Scan(ctx, engine.Range{Prefix: prefix, After: after})
}

func (q *queue) add(g *group) {
	q.groups[g.id] = g
	q.backoff.push(g)
}

// A work is the content of one batch: the items that it publishes, in order within each group, and
// those that it holds back.
type work struct {
	items  []*item
	hold   []*item  // items to be put after the held entries of their group
	landed []*item  // left to the client by an earlier batch and now answered
	groups []*group // the held groups of items
	bytes  int
	apart  bool                // exactly once: a transaction of retries only
	taken  map[entry.Group]int // new items of each group
	ahead  int                 // bytes of what is left for later batches
}

func (w *work) empty() bool { return len(w.items)+len(w.hold)+len(w.landed) == 0 }

// all iterates over the items with an outcome.
func (w *work) all() iter.Seq[*item] {
	return func(yield func(*item) bool) {
		for _, items := range [][]*item{w.landed, w.items} {
			for _, i := range items {
				if !yield(i) {
					return
				}
			}
		}
	}
}

func (w *work) full(b Batch) bool {
	return len(w.items)+len(w.hold) >= b.Entries || w.bytes >= b.Bytes
}

// fits reports whether an item may join.
func (w *work) fits(i *item, b Batch) bool {
	return !w.full(b) && (w.bytes == 0 || w.bytes+i.size() <= b.Bytes)
}

// bound shortens backoffs that end more than the longest backoff after now, because they started
// before the clock was set back. A backoff that had already ended remains ended.
func (q *queue) bound(now int64, longest time.Duration) {
	if q.now == 0 || now < q.now {
		q.backoff.bound(q.now, now, now+longest.Milliseconds())
		q.probe = 0
	}
	q.now = now
}

// collect takes the next batch: groups whose backoff has ended, then new entries, by due time. At
// most half of a batch are retries if there are enough new entries, so that messages that always
// fail, or a long backlog of one ordering key, do not stop all others. A batch of the exactly-once
// relay contains either retries or new entries, in turn, because it fails as a whole.
func (q *queue) collect(ctx context.Context, now int64, b Batch) (*work, error) {
	w := &work{}
	if !q.newFirst {
		if err := q.collectRetries(ctx, w, now, q.share(b)); err != nil {
			return w, err
		}
	}
	retries := len(w.items)
	if w.apart = q.apart && retries > 0; w.apart {
		q.newFirst = true
		return w, nil
	}
	full, err := q.collectNew(ctx, w, now, b)
	q.newFirst = full && len(w.items)+len(w.hold) == retries // the retries, such as large ones, have left no room
	if err != nil || q.apart && !w.empty() {
		return w, err
	}
	err = q.collectRetries(ctx, w, now, b) // retries get the remaining room, or the turn of the new entries
	if w.apart = q.apart && len(w.items) > 0; w.apart {
		q.newFirst = true
	}
	return w, err
}

// share returns the part of a batch for retries if there are enough new entries.
func (q *queue) share(b Batch) Batch {
	if !q.apart {
		b.Entries, b.Bytes = max(b.Entries/2, 1), max(b.Bytes/2, 1)
	}
	return b
}

// collectRetries takes groups whose backoff has ended. The exactly-once relay tries groups whose
// first entry was not at fault without others: see settle.
func (q *queue) collectRetries(ctx context.Context, w *work, now int64, b Batch) error {
	spared := false
	for !w.full(b) {
		g := q.backoff.due(now)
		if g == nil || spared && g.notBefore != atOnce {
			return nil
		}
		first := g.notBefore
		if fits, err := q.collectHeld(ctx, w, g, b); err != nil || !fits {
			return err
		}
		spared = q.apart && first == atOnce && len(w.items) > 0
	}
	return nil
}

// collectHeld takes the entries of a held group, up to an entry that has failed before: such an
// entry is taken only as the first. A group without entries is removed.
func (q *queue) collectHeld(ctx context.Context, w *work, g *group, b Batch) (fits bool, err error) {
	g.rest = 0
	first := true
	for kv, err := range q.scan(ctx, entry.GroupPrefix(g.id), nil) {
		if err != nil {
			return false, err
		}
		i, err := newItem(kv)
		if err != nil {
			return false, err
		}
		if !first && i.Entry.Attempts > 0 {
			g.rest = i.Entry.NotBefore
			return true, nil
		}
		if !w.fits(i, b) {
			return !first, nil
		}
		if first {
			g.first, g.due = i.place, i.Entry.Due
			q.backoff.remove(g)
			w.groups = append(w.groups, g)
		}
		first = false
		w.items = append(w.items, i)
		w.bytes += i.size()
	}
	if first {
		q.backoff.remove(g)
		delete(q.groups, g.id)
	}
	return true, nil
}

// collectNew takes new entries, unless too many entries are held, or an outage permits only
// retries. full reports that there are more entries than the batch has room for.
func (q *queue) collectNew(ctx context.Context, w *work, now int64, b Batch) (full bool, err error) {
	if q.outage && len(w.items) == 0 && len(q.groups) == 0 {
		q.outage = false
	}
	probe := now >= q.probe || !q.apart && q.newFirst // the retries of the last batch have left no room for them
	if q.outage && len(w.items) == 0 && !probe || len(q.groups) >= maxHeld {
		q.later, q.dueCursor = 0, nil // nothing new is taken until the probe or the end of the next backoff, so no due time matters
		return false, nil
	}
	if q.outage {
		b.Entries = min(b.Entries, len(w.items)+probes)
	}
	if !q.collectLeft(w, b) {
		return true, nil
	}
	if q.apart && len(w.items) > 0 {
		return false, nil // new entries could make the transaction fail again
	}
	return q.collectUnseen(ctx, w, now, b)
}

// collectLeft takes what earlier batches have left. It reports whether the batch has room for more.
func (q *queue) collectLeft(w *work, b Batch) bool {
	rest := make([]*item, 0, len(q.left))
	for n, i := range q.left {
		if q.exceedsShare(w, i, b) {
			rest = append(rest, i)
			w.ahead += i.size()
		} else if !q.take(w, i, b) {
			q.left = append(rest, q.left[n:]...)
			return false
		}
	}
	q.left = rest
	return true
}

// exceedsShare reports whether the batch already has its share of new items of a group.
func (q *queue) exceedsShare(w *work, i *item, b Batch) bool {
	return !q.apart && q.groups[i.group] == nil && w.taken[i.group] >= max(b.Entries/keyShare, 1)
}

// takeOrLeave takes an item, or leaves it for a later batch if this one has its share of the group.
func (q *queue) takeOrLeave(w *work, i *item, b Batch) bool {
	if !q.exceedsShare(w, i, b) {
		return q.take(w, i, b)
	}
	if w.full(b) || len(q.left) >= maxAhead || w.ahead+i.size() > maxAheadBytes {
		return false
	}
	q.left = append(q.left, i)
	w.ahead += i.size()
	return true
}

// collectUnseen takes entries that are ready or due, in the order of their due times. full is that
// of collectNew.
func (q *queue) collectUnseen(ctx context.Context, w *work, now int64, b Batch) (full bool, err error) {
	ready, stopReady := iter.Pull2(q.scan(ctx, entry.ReadyPrefix, q.cursor))
	defer stopReady()
	if now >= q.lookAll || now < q.lookAll-lookAllEvery {
		q.dueCursor, q.lookAll = nil, now+lookAllEvery
	}
	delayed, stopDelayed := iter.Pull2(q.scan(ctx, entry.DelayedPrefix, q.dueCursor))
	defer stopDelayed()
	r, err := next(ready)
	if err != nil {
		return false, err
	}
	d, err := q.nextDelayed(delayed)
	if err != nil {
		return false, err
	}
	q.later = 0
	for {
		if d != nil && d.Entry.Due > now {
			q.later, d = d.Entry.Due, nil
		}
		switch {
		case r == nil && d == nil:
			return false, nil
		case d == nil || r != nil && r.Entry.Due <= d.Entry.Due:
			if !q.takeOrLeave(w, r, b) {
				return true, nil
			}
			q.cursor = r.key
			if r, err = next(ready); err != nil {
				return false, err
			}
		default:
			if !q.takeOrLeave(w, d, b) {
				return true, nil
			}
			q.delayed[string(d.key)] = struct{}{}
			q.dueCursor = d.key
			if d, err = q.nextDelayed(delayed); err != nil {
				return false, err
			}
		}
	}
}

func next(pull func() (engine.KeyValue, error, bool)) (*item, error) {
	kv, err, ok := pull()
	if err != nil || !ok {
		return nil, err
	}
	return newItem(kv)
}

// nextDelayed is next for delayed entries. They have no cursor, so entries that were taken before
// may still exist.
func (q *queue) nextDelayed(pull func() (engine.KeyValue, error, bool)) (*item, error) {
	for {
		i, err := next(pull)
		if err != nil || i == nil {
			return nil, err
		}
		if _, taken := q.delayed[string(i.key)]; !taken {
			return i, nil
		}
	}
}

// take adds an item to the batch, unless it is full: to be published, or to be put after the held
// entries of its group.
func (q *queue) take(w *work, i *item, b Batch) bool {
	if !w.fits(i, b) {
		return false
	}
	i.outcome = left // of an earlier batch
	if g := q.groups[i.group]; g != nil {
		w.hold = append(w.hold, i)
	} else {
		w.items = append(w.items, i)
		if w.taken == nil {
			w.taken = make(map[entry.Group]int)
		}
		w.taken[i.group]++
	}
	w.bytes += i.size()
	return true
}

// wait returns the time until an entry is due, at most d.
func (q *queue) wait(now int64, d time.Duration) time.Duration {
	later := q.later
	if q.dueCursor != nil && (later == 0 || q.lookAll < later) {
		later = q.lookAll
	}
	for _, at := range []int64{later, q.backoff.next()} {
		if at != 0 {
			d = min(d, time.Duration(max(at-now, 0))*time.Millisecond)
		}
	}
	return d
}

// waiting reports whether the queue has held entries, or entries that were taken and not published.
func (q *queue) waiting() bool { return len(q.groups) > 0 || len(q.left) > 0 }

// oldest returns the due time of the oldest held entry, 0 if there is none.
func (q *queue) oldest() (due int64) {
	for _, g := range q.groups {
		if due == 0 || g.due < due {
			due = g.due
		}
	}
	return due
}
