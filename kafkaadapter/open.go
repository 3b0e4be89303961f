package kafkaadapter

import (
	"maps"

	"github.com/twmb/franz-go/pkg/kgo"
)

// openPending opens the partitions that have requested it. The client gets an assignment shortly
// after adjust returns; requests for partitions that it does not have yet are repeated.
func (l *poller) openPending() {
	asked := l.openings.take()
	if len(asked) == 0 {
		return
	}
	if l.shared.opt.Membership.isPinned() {
		maps.DeleteFunc(asked, func(p *partition, _ opening) bool { return !l.parts.isAssigned(p) })
		l.openPinned(asked)
		l.opened(asked)
		return
	}
	seek, aside := make(map[string]map[int32]kgo.EpochOffset), make(map[string]map[int32]kgo.EpochOffset)
	for p, at := range asked {
		if !l.parts.isAssigned(p) {
			delete(asked, p)
		} else if p.fetched || p.fetchAt != at.offset {
			put(seek, p, at.offset)
			put(aside, p, at.offset+1)
		}
	}
	var set map[string]map[int32]kgo.EpochOffset
	if len(seek) > 0 {
		l.shared.brokers.client.SetOffsets(aside) // the client would ignore the offset after the last record that it has returned
		l.shared.brokers.client.SetOffsets(seek)
		set = l.shared.brokers.client.CommittedOffsets()
	}
	for p, at := range asked {
		if _, ok := seek[p.pos.Topic][p.pos.Partition]; ok {
			if got, ok := set[p.pos.Topic][p.pos.Partition]; !ok || got.Offset != at.offset {
				l.openings.ask(p, at)
				delete(asked, p)
			}
		}
	}
	l.opened(asked)
}

// opened opens the queues of partitions that the client fetches from the right offsets.
func (l *poller) opened(asked map[*partition]opening) {
	all := make([]topicPartition, 0, len(asked))
	for p, at := range asked {
		p.fetched, p.fetchID = true, at.topicID
		p.queue.Start(at.offset)
		all = append(all, p.tp())
	}
	if len(all) > 0 {
		l.shared.brokers.client.ResumeFetchPartitions(byTopic(all))
	}
}

func put(offsets map[string]map[int32]kgo.EpochOffset, p *partition, offset int64) {
	if offsets[p.pos.Topic] == nil {
		offsets[p.pos.Topic] = make(map[int32]kgo.EpochOffset)
	}
	offsets[p.pos.Topic][p.pos.Partition] = kgo.EpochOffset{Epoch: -1, Offset: offset}
}

// openPinned lets the client fetch pinned partitions from the offsets.
func (l *poller) openPinned(asked map[*partition]opening) {
	all, offsets := make([]topicPartition, 0, len(asked)), make(map[string]map[int32]kgo.Offset)
	for p, at := range asked {
		all = append(all, p.tp())
		if offsets[p.pos.Topic] == nil {
			offsets[p.pos.Topic] = make(map[int32]kgo.Offset)
		}
		offsets[p.pos.Topic][p.pos.Partition] = kgo.NewOffset().At(at.offset).WithEpoch(-1)
	}
	l.shared.brokers.client.RemoveConsumePartitions(byTopic(all))
	l.shared.brokers.client.AddConsumePartitions(offsets)
}
