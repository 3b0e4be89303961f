package kafkaadapter

import (
	"fmt"
	"slices"
	"sync"
)

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

// Pause stops the handling of partitions of a topic, or of the whole topic if no partition is
// named, until Resume. It returns at once: a batch that is under way commits, and no other begins.
// A pause also applies to partitions that are assigned later. A paused partition stays assigned and
// keeps what was fetched of it, within Batching.MaxBufferedBytes; its lag is measured, and its hold
// stays, so that no week expires that its unread records need.
//
// Pause fails for a topic that no route consumes. It is safe for concurrent use, also before Run.
func (c *Consumer) Pause(topic string, partitions ...int32) error {
	return c.setPaused(true, topic, partitions)
}

// Resume ends the pause of partitions, or that of a topic and of all its partitions if no partition
// is named. A partition of a topic that is paused as a whole stays paused. Resume is safe for
// concurrent use.
func (c *Consumer) Resume(topic string, partitions ...int32) error {
	return c.setPaused(false, topic, partitions)
}

func (c *Consumer) setPaused(paused bool, topic string, partitions []int32) error {
	if c.opt.route(topic) == nil {
		return fmt.Errorf("%w: topic %q cannot be paused or resumed: no route of Options.Routes consumes it", ErrOption, topic)
	}
	c.pauses.set(paused, topic, partitions)
	for _, p := range c.partitions() {
		if p.pos.Topic == topic && (len(partitions) == 0 || slices.Contains(partitions, p.pos.Partition)) {
			p.queue.nudge()
		}
	}
	return nil
}

func (p *partition) isPaused() bool { return p.c.pauses.has(p.tp()) }

// waitPaused waits until the application resumes the partition.
func (p *partition) waitPaused() state {
	for p.isPaused() {
		select {
		case <-p.ending.Done():
			return ended
		case <-p.queue.wake:
		}
	}
	return p.reading()
}
