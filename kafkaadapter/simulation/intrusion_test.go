package simulation

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/hapax-dev/hapax/kafkaadapter"
)

// An intrusion is a commit for a partition by another program. The next machine must stop the
// partition.
type intrusion struct {
	partition int
	kind      error
	seen      atomic.Bool
	offset    int64 // the store's, -1 until known
}

// noticeTime is the time in which a machine must detect an intrusion after everything else is
// handled.
const noticeTime = time.Minute

// intrude commits an offset while the group has no members. It returns nil if there is no offset to
// disagree with yet.
func (w *world) intrude() (*intrusion, kafkaadapter.Recovery, error) {
	i := &intrusion{partition: w.pick(partitions), offset: -1}
	if w.floor[i.partition] == 0 {
		return nil, nil, nil
	}
	began := time.Now()
	for g := w.cluster.GroupInfo(group); g != nil && len(g.Members) > 0; g = w.cluster.GroupInfo(group) {
		time.Sleep(w.session / 4) // the members that died are removed
		if time.Since(began) > 4*w.session {
			(&machine{w: w}).reap(context.Background())
		}
	}
	at := kadm.Offset{Topic: topic, Partition: w.global(i.partition), At: w.ends()[i.partition] + 1, LeaderEpoch: -1}
	switch w.pick(3) {
	case 0:
		i.kind = kafkaadapter.ErrOffsetReset
	case 1:
		i.kind = kafkaadapter.ErrForeignStore
		at.Metadata = "hapax:00112233445566778899aabbccddeeff:1"
		at.At = w.floor[i.partition]
	case 2:
		i.kind = kafkaadapter.ErrKafkaAhead
		at.Metadata = w.signature
	}
	offsets := make(kadm.Offsets)
	offsets.Add(at)
	return i, kafkaadapter.Recovery{i.kind: kafkaadapter.TrustStore}, kadm.NewClient(w.out).CommitAllOffsets(context.Background(), group, offsets)
}

// intrudedLives runs a machine that must detect the intrusion, and then one whose policy is to
// trust the store.
func (w *world) intrudedLives(i *intrusion, recovery kafkaadapter.Recovery, p *power) {
	w.tally.intrusions++
	w.intrusion = i
	w.live(p, stopped)
	w.intrusion = nil
	if w.violated() {
		return
	}
	w.recovery = recovery
	w.tally.clean++
	w.live(newPower(atIdle, -1), stoppedLater) // the machine commits its own offset meanwhile
	w.recovery = nil
}

// check records the store's offset of the partition when the machine begins. The offset must not
// change.
func (i *intrusion) check(w *world, offset int64) {
	if i.offset >= 0 && offset != i.offset {
		w.violate("partition %d went from %d to %d, although it must stop: %v", i.partition, i.offset, offset, i.kind)
	}
	i.offset = offset
}
