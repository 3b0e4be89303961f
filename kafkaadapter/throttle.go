package kafkaadapter

import (
	"sync"
	"time"
)

// logEvery is the interval in which one kind of message is logged once.
const logEvery = time.Minute

// A throttle passes one message of each kind in an interval, and counts the others. A kind is a
// text and a partition.
type throttle struct {
	mu    sync.Mutex // guards kinds
	kinds map[kind]*muted
}

type kind struct {
	text string
	tp   topicPartition
}

type muted struct {
	until      time.Time
	suppressed int
}

// pass reports whether a message is to be logged, and how many of its kind were suppressed since
// the last one.
func (t *throttle) pass(k kind, now time.Time) (suppressed int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kinds == nil {
		t.kinds = make(map[kind]*muted)
	}
	m := t.kinds[k]
	if m == nil {
		m = &muted{}
		t.kinds[k] = m
	}
	if now.Before(m.until) {
		m.suppressed++
		return 0, false
	}
	suppressed, m.suppressed = m.suppressed, 0
	m.until = now.Add(logEvery)
	return suppressed, true
}
