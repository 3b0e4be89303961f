package kafkaadapter

import (
	"fmt"
	"slices"
)

// transitions lists for each state the step that the goroutine takes in it, and the states that the
// step may return. docs/architecture.md draws them.
var transitions = [ended]struct {
	step func(*worker) state
	next []state
}{
	lookingUp:   {(*worker).lookUp, []state{takingOver, lookingUp, failingOpen, stopped, ended}},
	takingOver:  {(*worker).takeOver, []state{signing, lookingUp, failingOpen, stopped, ended}},
	signing:     {(*worker).sign, []state{publishing, lookingUp, ended}},
	failingOpen: {(*worker).failOpen, []state{unprotected, lookingUp, failingOpen, stopped, ended}},
	publishing:  {(*worker).publish, []state{running, failingOpen, stopped, ended}},
	running:     {(*worker).run, []state{publishing, paused, silent, lookingUp, failingOpen, stopped, ended}},
	unprotected: {(*worker).runOpen, []state{paused, silent, lookingUp, stopped, ended}},
	paused:      {(*worker).waitPaused, []state{running, unprotected, ended}},
	silent:      {(*worker).listen, []state{running, unprotected, ended}},
	stopped:     {(*worker).waitStopped, []state{lookingUp, publishing, ended}},
}

// live runs the states of the assignment in its goroutine.
func (w *worker) live() {
	defer close(w.done)
	defer alive.Delete(w.fence.token)
	returned := false
	defer func() {
		if !returned {
			w.c.fail(fmt.Errorf("hapax: %s: a handler ended its goroutine (runtime.Goexit, as t.FailNow does)", w.tp()))
		}
	}()
	for s := lookingUp; s != ended; {
		w.enter(s)
		t := &transitions[s]
		next := t.step(w)
		if !slices.Contains(t.next, next) {
			w.c.fail(fmt.Errorf("hapax: %s went from %v to %v, which is a bug", w.tp(), s, next))
			next = ended
		}
		s = next
	}
	w.enter(ended)
	w.endAdoption(errAdoptAgain)
	if w.fence.taken && w.ctx.Err() == nil && !w.open.Load() {
		w.fence.leave(w.ctx, w.log)
	}
	returned = true
}
