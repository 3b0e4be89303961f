package kafkaadapter

import (
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// checkShapes looks up partitions again if the number of partitions of their topic has changed.
func checkShapes(parts *assignments, details kadm.TopicDetails) {
	for _, p := range parts.all() {
		d, found := details[p.pos.Topic]
		if known := p.shape.Load(); known != nil && found && d.Err == nil && !shapeOf(d).Follows(*known) {
			parts.pause(p)
			p.queue.Interrupt(errShapeChanged)
		}
	}
}

func shapeOf(d kadm.TopicDetail) resume.Topic {
	return resume.Topic{ID: d.ID, Partitions: uint32(len(d.Partitions))}
}
