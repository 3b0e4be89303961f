package kafkaadapter

import (
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
		for p, at := range asked {
			if l.parts.isAssigned(p) {
				l.openPinned(p, at)
				l.opened(p, at)
			}
		}
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
				continue
			}
		}
		l.opened(p, at)
	}
}

// opened opens the queue of a partition that the client fetches from the right offset.
func (l *poller) opened(p *partition, at opening) {
	p.fetched, p.fetchID = true, at.topicID
	p.queue.start(at.offset)
	l.shared.brokers.client.ResumeFetchPartitions(p.only())
}

func put(offsets map[string]map[int32]kgo.EpochOffset, p *partition, offset int64) {
	if offsets[p.pos.Topic] == nil {
		offsets[p.pos.Topic] = make(map[int32]kgo.EpochOffset)
	}
	offsets[p.pos.Topic][p.pos.Partition] = kgo.EpochOffset{Epoch: -1, Offset: offset}
}

// openPinned lets the client fetch a pinned partition from an offset.
func (l *poller) openPinned(p *partition, at opening) {
	l.shared.brokers.client.RemoveConsumePartitions(p.only())
	l.shared.brokers.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{
		p.pos.Topic: {p.pos.Partition: kgo.NewOffset().At(at.offset).WithEpoch(-1)},
	})
}
