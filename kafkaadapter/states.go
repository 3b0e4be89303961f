package kafkaadapter

import (
	"context"
	"fmt"
	"slices"
)

// transitions lists for each state the step that the goroutine takes in it, and the states that the
// step may return. docs/architecture.md draws them.
var transitions = [ended]struct {
	step func(*worker) state
	next []state
}{
	restoring:   {restore, []state{lookingUp, restoring, stopped, ended}},
	lookingUp:   {func(w *worker) state { return w.finder.lookUp() }, []state{takingOver, lookingUp, failingOpen, stopped, ended}},
	takingOver:  {func(w *worker) state { return w.finder.takeOver() }, []state{signing, lookingUp, failingOpen, stopped, ended}},
	signing:     {func(w *worker) state { return w.finder.sign() }, []state{publishing, lookingUp, ended}},
	failingOpen: {func(w *worker) state { return w.finder.failOpen() }, []state{unprotected, lookingUp, failingOpen, stopped, ended}},
	publishing:  {publish, []state{running, failingOpen, stopped, ended}},
	running:     {(*worker).run, []state{publishing, paused, lookingUp, failingOpen, stopped, ended}},
	unprotected: {(*worker).runOpen, []state{paused, lookingUp, stopped, ended}},
	paused:      {func(w *worker) state { return w.state.waitPaused() }, []state{running, unprotected, lookingUp, stopped, ended}},
	stopped:     {func(w *worker) state { return w.state.waitStopped() }, []state{restoring, lookingUp, publishing, ended}},
}

// publish is the first step of a partition that is looked up and owned.
func publish(w *worker) state {
	w.partition.store.begin(w.partition.ending, w.partition.pos)
	return w.state.publish()
}

// live runs the states of the assignment in its goroutine.
func (w *worker) live() {
	defer close(w.partition.done)
	defer w.partition.store.end()
	defer releaseQueue(w.partition)
	defer w.partition.fence.End()
	returned := false
	defer func() {
		if !returned {
			w.partition.c.fail(fmt.Errorf("hapax: %s: a handler ended its goroutine (runtime.Goexit, as t.FailNow does)", w.partition.tp()))
		}
	}()
	for s := w.partition.store.first(); s != ended; {
		w.partition.enter(s)
		t := &transitions[s]
		next := t.step(w)
		if !slices.Contains(t.next, next) {
			w.partition.c.fail(fmt.Errorf("hapax: %s went from %v to %v, which is a bug", w.partition.tp(), s, next))
			next = ended
		}
		s = next
	}
	w.partition.enter(ended)
	w.finder.endAdoption(errAdoptAgain).finish(errAdoptAgain)
	_ = w.partition.store.settle(context.Background()) // finish cuts it off
	if w.partition.fence.IsTaken() && w.partition.ctx.Err() == nil && !w.partition.open.Load() {
		w.partition.leave()
	}
	returned = true
}
