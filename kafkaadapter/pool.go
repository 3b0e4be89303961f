package kafkaadapter

import (
	"runtime"
	"time"
)

// A pool runs the handlers of the records of one batch in parallel. It is used by the goroutine of
// the partition, and each handler has its own goroutine. Tasks are the indices of the records
// in the order of offsets. They are settled in that order; a task begins when the last earlier one
// with its key or its event is settled.
type pool struct {
	route  *Route
	states []taskState
	after  []int // for each task, the task that must be settled before it, or -1

	settled int // earlier tasks are settled
	ordered int // earlier tasks are in after
	begun   int // later tasks have not begun
	end     int // tasks from here on must not begin

	byKey, byEvent map[string]int // the last task with a key or an event
	barrier        int            // the last task that runs alone, or -1

	free     []int // slots for handlers
	returned chan returned
	running  int
	exited   bool // a handler ended its goroutine
}

// A taskState is the state of a task.
type taskState uint8

const (
	taskWaiting taskState = iota
	taskRunning
	taskFinished
)

// the function of the task has returned
type returned struct {
	task, slot int
	exited     bool
}

func newPool(route *Route, tasks int) *pool {
	w := &pool{
		route: route, states: make([]taskState, tasks), after: make([]int, 0, tasks), end: tasks, barrier: -1,
		byKey: make(map[string]int), byEvent: make(map[string]int), returned: make(chan returned, route.Concurrency.handlers),
	}
	for slot := route.Concurrency.handlers - 1; slot >= 0; slot-- {
		w.free = append(w.free, slot)
	}
	return w
}

// order adds the next record to the pool.
func (p *partition) order(w *pool, r *delivery) {
	var rec *Record
	if r != nil && w.route.Concurrency.key != nil && len(r.Event.ID) > 0 {
		rec = p.handlers.hands.give(r)
	}
	if !w.order(r, rec) {
		p.c.throttled(p.log.Error, "Concurrency.key panicked; its record is handled alone", p.tp(), "offset", r.Record.Offset)
	}
}

// reach returns the end of the tasks that the window allows to begin.
func (w *pool) reach() int { return min(w.settled+w.route.Concurrency.window(), len(w.states)) }

// order orders the next task after those with its key or its event; rec is for Concurrency.key. A
// record without an event is not handled and does not wait. order returns false if the
// application's function for the key panicked: then the task runs alone.
func (w *pool) order(r *delivery, rec *Record) (ok bool) {
	task := w.ordered
	w.ordered++
	after := w.barrier
	if r == nil || len(r.Event.ID) == 0 {
		w.after = append(w.after, after)
		return true
	}
	key, ok := w.key(r, rec)
	switch {
	case !ok:
		w.barrier, after = task, task-1
	case key != nil:
		after = max(after, behind(w.byKey, key, task))
	}
	w.after = append(w.after, max(after, behind(w.byEvent, r.Event.ID, task)))
	return ok
}

// behind makes a task the last one with a name, and returns the previous last one, or -1.
func behind(last map[string]int, name []byte, task int) int {
	before, found := last[string(name)]
	last[string(name)] = task
	if !found {
		return -1
	}
	return before
}

func (w *pool) key(r *delivery, rec *Record) (key []byte, ok bool) {
	if w.route.Concurrency.key == nil {
		return r.Record.Key, true
	}
	defer func() {
		if recover() != nil {
			key, ok = nil, false
		}
	}()
	return w.route.Concurrency.key(rec), true
}

// next returns a task that can begin now, and false if there is none.
func (w *pool) next() (task int, ok bool) {
	if len(w.free) == 0 {
		return 0, false
	}
	for i := w.settled; i < min(w.ordered, w.end); i++ {
		if w.states[i] == taskWaiting && w.after[i] < w.settled {
			return i, true
		}
	}
	return 0, false
}

// begin runs f as a task in a goroutine. A slot must be free.
func (w *pool) begin(task int, f func(slot int)) {
	slot := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	w.states[task], w.begun = taskRunning, max(w.begun, task+1)
	w.running++
	go func() {
		done := returned{task, slot, true}
		defer func() { w.returned <- done }()
		f(slot)
		done.exited = false
	}()
}

// await waits until a running task has finished, and returns the task.
func (w *pool) await() (task int) {
	r := <-w.returned
	w.running--
	w.free = append(w.free, r.slot)
	w.states[r.task] = taskFinished
	w.exited = w.exited || r.exited
	return r.task
}

// settle settles tasks up to the first that has not finished.
func (w *pool) settle() {
	for w.settled < len(w.states) && w.states[w.settled] == taskFinished {
		w.settled++
	}
}

// drain waits for all tasks that have begun. A handler that ended its goroutine also ends the
// partition's goroutine, as if it had run there.
func (w *pool) drain() {
	for w.running > 0 {
		w.await()
	}
	if w.exited {
		w.exited = false
		runtime.Goexit()
	}
}

// limit keeps further tasks from beginning: all of them if the assignment ends, and those after the
// last one that has begun if the time of the batch is over. Otherwise, a handled record would run
// again if an earlier one were left to the next batch.
func (w *pool) limit(p *partition, began time.Time) {
	switch {
	case w.begun == 0:
	case p.isEnding():
		w.end = 0
	case time.Since(began) > p.c.opt.batchTime:
		w.end = min(w.end, w.begun)
	}
}
