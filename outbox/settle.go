package outbox

import (
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/entry"
	"github.com/hapax-dev/hapax/internal/untrusted"
)

// settle turns the outcome of a batch into a change of the store. It updates the queue as if the
// change had been made: if the change fails, load the queue again.
func (q *queue) settle(w *work, now int64, r *Retry) *change {
	c := &change{}
	blocked := make(map[entry.Group]bool) // groups of items that failed and are retried
	for i := range w.all() {
		switch i.outcome {
		case failed:
			i.fail(now, r)
			blocked[i.group] = blocked[i.group] || !i.exhausted(r)
		case waiting, flying:
			blocked[i.group] = true
		}
	}
	var rest []*item
	for i := range w.all() {
		switch {
		case i.outcome == published || i.outcome == failed && i.exhausted(r):
			q.gone(c, i)
		case i.held():
			if i.outcome == failed {
				c.put = append(c.put, engine.KeyValue{Key: i.key, Value: i.Entry.Append(nil)})
			}
			q.groups[i.group].remains(i)
		case blocked[i.group]:
			q.hold(c, w, i)
			q.groups[i.group].remains(i)
		default:
			rest = append(rest, i)
		}
	}
	for _, g := range w.groups {
		if g.first == g.next {
			delete(q.groups, g.id)
		}
	}
	for _, i := range w.hold {
		if q.groups[i.group] == nil {
			rest = append(rest, i) // the last of its group is published
			continue
		}
		q.hold(c, w, i)
	}
	for _, g := range w.groups {
		switch {
		case g.first == g.next:
		case g.head != nil && g.head.outcome == flying: // until it has landed
			g.head, g.rest = nil, 0
		default:
			q.again(g, now+r.Max.Milliseconds())
		}
	}
	q.left = append(rest, q.left...)
	return c
}

// gone removes an item that was published or is parked.
func (q *queue) gone(c *change, i *item) {
	c.remove(i)
	c.gone.Entries++
	if i.outcome == failed {
		c.parked = append(c.parked, i)
		c.gone.Parked++
	} else {
		c.gone.Bytes += i.Entry.Bytes()
	}
	delete(q.delayed, string(i.key))
	if g := q.groups[i.group]; i.held() && g.head == nil { // otherwise an earlier entry of the group remains
		g.first = i.place + 1
	}
}

// hold puts an item after the held entries of its group, which may have none yet.
func (q *queue) hold(c *change, w *work, i *item) {
	g := q.groups[i.group]
	if g == nil {
		g = &group{id: i.group, first: 1, next: 1, due: i.Entry.Due, index: -1}
		q.groups[i.group] = g
		w.groups = append(w.groups, g)
	}
	c.remove(i)
	delete(q.delayed, string(i.key))
	i.key, i.place = entry.HeldKey(g.id, g.next), g.next
	g.next++
	c.put = append(c.put, engine.KeyValue{Key: i.key, Value: i.Entry.Append(nil)})
}

// again returns a group of the batch to those that wait, until latest at most. A group whose next
// entry was not at fault need not wait. If its transaction failed because of another entry, the
// group comes first. Otherwise it comes after the groups whose backoff has ended by now, so that a
// long backlog does not stop them.
func (q *queue) again(g *group, latest int64) {
	g.notBefore, g.on = q.now, partition{}
	switch {
	case g.head == nil && g.rest > 0:
		g.notBefore = g.rest
	case g.head != nil && g.head.outcome == failed:
		g.notBefore = g.head.Entry.NotBefore
	case g.head != nil && g.head.outcome == aborted:
		g.notBefore = atOnce
	case g.head != nil && g.head.outcome == waiting:
		g.notBefore, g.on = latest, g.head.on
		if g.head.until != 0 {
			g.notBefore = g.head.until
		}
	}
	if g.head != nil {
		g.due = g.head.Entry.Due
	}
	g.notBefore = min(g.notBefore, latest)
	g.head, g.rest = nil, 0
	q.backoff.push(g)
}

// fail records a failed attempt.
func (i *item) fail(now int64, r *Retry) {
	i.Entry.Attempts++
	if refused(i.err) {
		i.Entry.Refused++
	}
	i.Entry.NotBefore = now + r.delay(i.Entry.Attempts).Milliseconds()
	i.Entry.LastError = untrusted.Capped(i.err.Error(), maxErrorBytes)
}

// exhausted reports whether a failed item must be parked.
func (i *item) exhausted(r *Retry) bool {
	return refused(i.err) && i.Entry.Refused >= uint64(r.Attempts)
}

// maxErrorBytes is the maximum size of the error text that is stored with an entry.
const maxErrorBytes = 1 << 10
