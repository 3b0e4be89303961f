package kafkaadapter

import (
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
