package kafkaadapter

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// A state is a stage in the life of an assigned partition. Each assignment has one goroutine, which
// is in one state at a time; nothing else changes the state.
type state uint8

const (
	lookingUp   state = iota // asks the brokers for the topic's id, the log's bounds and the end of the last epoch
	takingOver               // compares these with the store and the group's commit, and becomes the owner in the store
	signing                  // commits the offset to Kafka with the store's identity
	failingOpen              // the store is away: begins at Kafka's offset, and commits it with a mark
	publishing               // publishes dead letters that the store has and the broker does not
	running                  // handles records
	unprotected              // the store is away: handles records without claims
	paused                   // waits until the application resumes it
	silent                   // waits for records that the broker has and does not send, or for an answer of the broker
	stopped                  // does not read the partition, for a stated reason, until the next try
	ended                    // the assignment is over
	stateCount
)

var stateNames = [stateCount]string{"lookingUp", "takingOver", "signing", "failingOpen", "publishing", "running", "unprotected", "paused", "silent", "stopped", "ended"}

func (s state) String() string { return stateNames[s] }

// transitions has for each state the step that the goroutine takes there, and the states that the
// step may return. The package documentation draws them.
var transitions = [ended]struct {
	step func(*partition) state
	next []state
}{
	lookingUp:   {(*partition).lookUp, []state{takingOver, lookingUp, failingOpen, stopped, ended}},
	takingOver:  {(*partition).takeOver, []state{signing, failingOpen, stopped, ended}},
	signing:     {(*partition).sign, []state{publishing, lookingUp, ended}},
	failingOpen: {(*partition).failOpen, []state{unprotected, lookingUp, failingOpen, stopped, ended}},
	publishing:  {(*partition).publish, []state{running, failingOpen, stopped, ended}},
	running:     {(*partition).run, []state{publishing, paused, silent, lookingUp, failingOpen, stopped, ended}},
	unprotected: {(*partition).runOpen, []state{paused, silent, lookingUp, stopped, ended}},
	paused:      {(*partition).waitPaused, []state{running, unprotected, ended}},
	silent:      {(*partition).listen, []state{running, unprotected, ended}},
	stopped:     {(*partition).waitStopped, []state{lookingUp, publishing, ended}},
}

// A status is the state of a partition as others see it.
type status struct {
	state   state
	stop    *StopError  // why the partition is not read, or was not before the present try; nil while it is read
	nextTry time.Time   // when a stopped partition is tried again; zero if that needs a new assignment
	adopted []*adoption // those that have met a further disagreement, which stops the partition
}

// status returns the state, the reason if the partition is not read, and the time of the next try.
func (p *partition) status() status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stat
}

// live is the goroutine of the assignment.
func (p *partition) live() {
	defer close(p.done)
	returned := false
	defer func() {
		if !returned {
			p.c.fail(fmt.Errorf("hapax: %s: a handler ended its goroutine (runtime.Goexit, as t.FailNow does)", p.tp()))
		}
	}()
	for s := lookingUp; s != ended; {
		p.enter(s)
		t := &transitions[s]
		next := t.step(p)
		if !slices.Contains(t.next, next) {
			p.c.fail(fmt.Errorf("hapax: %s went from %v to %v, which is a bug", p.tp(), s, next))
			next = ended
		}
		s = next
	}
	p.enter(ended)
	p.endAdoption(ErrFenced)
	p.fence.leave(p)
	returned = true
}

func (p *partition) enter(s state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stat.state = s
}

// isRead notes that the partition is read: records came, or there are none to read.
func (p *partition) isRead() {
	p.mu.Lock()
	was := p.stat.stop
	p.stat.stop, p.stat.nextTry = nil, time.Time{}
	p.mu.Unlock()
	if was != nil {
		p.lastStop, p.lastStopEnd = was.Reason, time.Now()
		p.c.throttled(p.log.Info, "partition continues", p.tp(), "reason", was.Reason)
	}
}

// report notes why the partition is not read, and reports it unless that is no news. A next try of
// zero means that there is none in this assignment.
func (p *partition) report(reason string, err error, nextTry time.Time) {
	e := &StopError{p.pos.Topic, p.pos.Partition, reason, err}
	p.mu.Lock()
	was := p.stat.stop
	p.stat.stop, p.stat.nextTry = e, nextTry
	p.mu.Unlock()
	again := was == nil && p.lastStop == reason && time.Since(p.lastStopEnd) < logEvery // it had ended for a moment
	if again || was != nil && was.Reason == reason && errors.Is(kindOf(was.Err), kindOf(err)) {
		p.c.throttled(p.log.Warn, "partition is still stopped", p.tp(), "reason", reason, "error", err)
		return
	}
	p.c.m.stops.WithLabelValues(p.pos.Topic, reason).Inc()
	p.log.Error("partition stopped", "reason", reason, "error", err)
	if p.c.opt.Hooks.OnStop != nil {
		p.c.opt.Hooks.OnStop(e)
	}
}

// stop stops the partition for a reason that lasts for the assignment, unless AdoptOffset ends it.
func (p *partition) stop(reason string, err error) state {
	p.retry = ended
	p.report(reason, err, time.Time{})
	return stopped
}

// stopForNow stops the partition for a reason that may pass: the next try begins in the state
// retry, after a backoff.
func (p *partition) stopForNow(reason string, err error, retry state) state {
	if p.isEnding() {
		return ended
	}
	pause := p.retries.NextBackOff()
	p.retry, p.retryIn = retry, pause
	p.report(reason, err, time.Now().Add(pause))
	return stopped
}

// waitStopped waits for the next try.
func (p *partition) waitStopped() state {
	if p.retry == ended {
		select {
		case <-p.ending.Done():
			return ended
		case p.adopting = <-p.adoptions:
			return lookingUp
		}
	}
	if !p.wait(p.retryIn) {
		return ended
	}
	return p.retry
}
