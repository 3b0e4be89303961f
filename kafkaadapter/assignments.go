package kafkaadapter

import (
	"maps"
	"slices"
	"sync"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
)

// assignments has the partitions currently assigned to the consumer.
type assignments struct {
	memory *feed.Memory // of all queues together

	mu     sync.Mutex // guards the fields below; not held during I/O
	parts  map[topicPartition]*partition
	lost   map[topicPartition]bool // taken away because the member's session has ended, until it has joined again
	closed bool                    // Run ends: there are no others
}

func newAssignments(memory *feed.Memory) *assignments {
	return &assignments{memory: memory, parts: make(map[topicPartition]*partition)}
}

// get returns a partition, nil if it is not assigned.
func (a *assignments) get(tp topicPartition) *partition {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.parts[tp]
}

func (a *assignments) all() []*partition {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]*partition, 0, len(a.parts))
	for _, p := range a.parts {
		all = append(all, p)
	}
	return all
}

// of returns the partition, or if its number is negative, all partitions of the topic.
func (a *assignments) of(tp topicPartition) (all []*partition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.parts[tp]; p != nil {
		return []*partition{p}
	}
	for _, p := range a.parts {
		if tp.partition < 0 && p.pos.Topic == tp.topic {
			all = append(all, p)
		}
	}
	return all
}

// put adds an assignment, and returns the one of the same partition that it replaces, if any. After
// close it adds nothing and returns false.
func (a *assignments) put(p *partition) (before *partition, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, false
	}
	before = a.parts[p.tp()]
	p.before.Store(before)
	a.parts[p.tp()] = p
	delete(a.lost, p.tp())
	return before, true
}

// noteLost records partitions that were lost, until the next call; nil for none.
func (a *assignments) noteLost(all []*partition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lost = make(map[topicPartition]bool, len(all))
	for _, p := range all {
		a.lost[p.tp()] = true
	}
}

// lostOnes returns the partitions that were lost.
func (a *assignments) lostOnes() []topicPartition {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.lost))
}

// take removes partitions and returns those that were assigned.
func (a *assignments) take(lost map[string][]int32) (taken []*partition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for topic, partitions := range lost {
		for _, partition := range partitions {
			tp := topicPartition{topic, partition}
			if p := a.parts[tp]; p != nil {
				taken = append(taken, p)
				delete(a.parts, tp)
			}
		}
	}
	return taken
}

// remove removes assignments, unless others have replaced them.
func (a *assignments) remove(all []*partition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range all {
		if a.parts[p.tp()] == p {
			delete(a.parts, p.tp())
		}
	}
}

// close removes all assignments and returns them. After that, none is added.
func (a *assignments) close() (taken []*partition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for tp, p := range a.parts {
		taken = append(taken, p)
		delete(a.parts, tp)
	}
	return taken
}

// whileAssigned runs fn if p is the current assignment of its partition, so that a late pause or
// stop does not affect the next assignment. The caller may hold p.mu; fn must not block.
func (a *assignments) whileAssigned(p *partition, fn func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.parts[p.tp()] == p {
		fn()
	}
}

func (a *assignments) isAssigned(p *partition) (yes bool) {
	a.whileAssigned(p, func() { yes = true })
	return yes
}

// pause stops the fetching of a partition.
func (a *assignments) pause(p *partition) {
	a.whileAssigned(p, func() { p.c.brokers.client.PauseFetchPartitions(p.only()) })
}

// queues returns the queues of all partitions.
func (a *assignments) queues() []*feed.Queue {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]*feed.Queue, 0, len(a.parts))
	for _, p := range a.parts {
		all = append(all, p.queue)
	}
	return all
}

// changed is whileAssigned for all partitions together: tell gets those for whose queues change returns
// true, if there are any.
func (a *assignments) changed(change func(*feed.Queue) bool, tell func(map[string][]int32)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []topicPartition
	for tp, p := range a.parts {
		if change(p.queue) {
			all = append(all, tp)
		}
	}
	if len(all) > 0 {
		tell(byTopic(all))
	}
}
