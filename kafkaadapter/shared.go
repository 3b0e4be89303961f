package kafkaadapter

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/reach"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
)

// shared is the state that a consumer and its partitions share. It does not refer to any partition.
type shared struct {
	opt      Options
	m        *metrics
	throttle throttle
	links    links   // to the store
	stores   *stores // of the partitions, with a changelog; otherwise nil
	pauses   pauses
	health   health
	fatal    chan error // the failure that ends Run

	positions sync.Map // topics whose records were found to have no id, see notePositions

	brokers      clients
	reach        reach.Watch                      // of the client
	memory       *feed.Memory                     // of fetched records
	decompressor *feed.Decompressor               // of the client
	surveys      chan struct{}                    // see surveyFrom
	publishers   map[string]*deadletter.Publisher // by dead-letter topic
}

// health is what Ready and Live need in addition to the states of the partitions.
type health struct {
	joined  atomic.Bool           // the group has made an assignment for this member
	awaited atomic.Int64          // new partitions whose commits the client has not fetched yet
	outcome atomic.Pointer[error] // of Run, once it has returned
	// why dead letters cannot be published, as last reported by the brokers
	letters atomic.Pointer[error]
	// which topics cannot be consumed, as last reported by the brokers; nil before that, and to nil if all can
	topics atomic.Pointer[error]
}

// disconnected returns an error with the cause while no broker answers.
func (c *shared) disconnected() error {
	if state, err := c.reach.State(time.Now()); err != nil {
		return fmt.Errorf("%w (%v): %w", ErrDisconnected, state, err)
	}
	return nil
}

// fail ends Run.
func (c *shared) fail(err error) {
	select {
	case c.fatal <- err:
	default: // the first one counts
	}
}

// throttled logs a message that may be frequent.
func (c *shared) throttled(log func(msg string, args ...any), text string, tp topicPartition, args ...any) {
	if suppressed, ok := c.throttle.pass(kind{text, tp}, time.Now()); ok {
		if suppressed > 0 {
			args = append(args, "suppressed", suppressed)
		}
		log(text, args...)
	}
}

// engine is the engine of the last link, nil if there was none.
func (c *shared) engine() *engine.Engine {
	if l, _ := c.links.get(); l != nil {
		return l.eng
	}
	return nil
}

// pauses are the topics and partitions that the application has paused.
type pauses struct {
	mu         sync.Mutex // guards the rest
	topics     map[string]bool
	partitions map[topicPartition]bool
}

func (s *pauses) has(tp topicPartition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.topics[tp.topic] || s.partitions[tp]
}

// set pauses or resumes partitions of a topic. Without partitions it pauses the topic, or resumes
// it with all of its partitions.
func (s *pauses) set(paused bool, topic string, partitions []int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics == nil {
		s.topics, s.partitions = make(map[string]bool), make(map[topicPartition]bool)
	}
	switch {
	case paused && len(partitions) == 0:
		s.topics[topic] = true
	case len(partitions) == 0:
		delete(s.topics, topic)
		for tp := range s.partitions {
			if tp.topic == topic {
				delete(s.partitions, tp)
			}
		}
	}
	for _, partition := range partitions {
		if tp := (topicPartition{topic, partition}); paused {
			s.partitions[tp] = true
		} else {
			delete(s.partitions, tp)
		}
	}
}

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
