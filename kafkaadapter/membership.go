package kafkaadapter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// Membership is the consumer's part in the group. The zero value is a dynamic member with the classic
// protocol, cooperative-sticky. The others are made by Static, Pinned and Membership.ServerSide.
type Membership struct {
	isStatic   bool
	instanceID string
	serverSide bool
	isFixed    bool // by Pinned, whatever its arguments are
	pinned     fixedShare
}

// Static returns the membership of a static member, which keeps its partitions during a restart shorter
// than the session timeout. No other member of the group has the same instance id.
func Static(instanceID string) Membership { return Membership{isStatic: true, instanceID: instanceID} }

// ServerSide returns the membership with the group protocol of KIP-848, for brokers that support it. The
// brokers then choose the heartbeat interval (group.consumer.heartbeat.interval.ms, 5 s by default),
// which the client does not report. A fenced partition waits for kgo.HeartbeatInterval before it is
// taken over again: set that option in Options.Client to the brokers' interval if it is longer than the
// client's default of 3 s.
func (m Membership) ServerSide() Membership {
	m.serverSide = true
	return m
}

// Pinned returns the membership of a consumer with a fixed part of the partitions, without rebalancing:
// the partitions of each topic whose number modulo count is index. Use it for several processes that each
// have a store on their own volume, such as the pods of a StatefulSet: index is the ordinal of the pod,
// and count the number of replicas.
//
// An event is then a duplicate only of an event in the partitions of the same consumer. Producers
// must send all copies of an event to one partition, as they do when the record's key decides
// it. The number of a topic's partitions therefore must not change: the store keeps it, and if it has
// changed, the topic's partitions stop with ErrPartitionsChanged, unless count is 1.
//
// Offsets are committed under Options.Group, for lag tools; no process may consume with that group
// as a member. The commit is read again before it is replaced: if a process with another store has
// committed for the partition, the partition stops with ErrForeignStore. Two processes with one
// ordinal therefore do not both continue.
func Pinned(index, count int) Membership {
	return Membership{isFixed: true, pinned: fixedShare{index, count}}
}

// A fixedShare is the part of the partitions of a pinned consumer.
type fixedShare struct {
	index int // from 0
	count int // the number of consumers; 0: not pinned
}

// ErrPinnedChanged is returned by Run if the store was used with a different part of the partitions.
// Partitions would move between stores that do not have each other's claims.
var ErrPinnedChanged = errors.New("hapax: Options.Membership has another part of the partitions than before for this store, and partitions would move to stores without their claims: " +
	"restore the earlier values; or, to change the number of consumers, wait until the lag is 0, stop all of them, and start each with a new store " +
	"and Recovery[ErrForeignStore] = TrustKafka: copies of earlier events are then handled again")

func (m *Membership) isPinned() bool { return m.pinned.count != 0 }

// label names the consumer among those of its group in metrics.
func (m *Membership) label() string {
	if m.isPinned() {
		return strconv.Itoa(m.pinned.index)
	}
	return m.instanceID
}

func (s fixedShare) has(partition int32) bool { return int(partition)%s.count == s.index }

func (m *Membership) check() error {
	switch s := m.pinned; {
	case m.isStatic && m.instanceID == "":
		return fmt.Errorf("%w: Options.Membership is Static without an instance id: name the member", ErrOption)
	case s == fixedShare{} && !m.isFixed:
		return nil
	case s.count < 1 || s.index < 0 || s.index >= s.count:
		return fmt.Errorf("%w: Options.Membership is Pinned(%d, %d): give an index from 0 to count-1", ErrOption, s.index, s.count)
	case m.instanceID != "" || m.serverSide:
		return fmt.Errorf("%w: Options.Membership is Pinned and ServerSide, which is for members of a group: leave ServerSide out", ErrOption)
	}
	return nil
}

// encode: version 1 | index u32 | count u32.
func (s fixedShare) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{1}, uint32(s.index)), uint32(s.count))
}

func parsePinned(b []byte) (fixedShare, error) {
	if len(b) != 9 || b[0] != 1 {
		return fixedShare{}, unknownForm("the pinned partitions", b)
	}
	return fixedShare{int(binary.BigEndian.Uint32(b[1:])), int(binary.BigEndian.Uint32(b[5:]))}, nil
}

func shapeKey(group, topic string) []byte {
	return partitionKey(keyShape, engine.OffsetKey{Group: group, Topic: topic, Partition: -1})
}

// lastShape returns the stored shape of a topic, and stores the present one if there is none.
func lastShape(tx *engine.Tx, group, topic string, now resume.Topic) (resume.Topic, error) {
	b, found, err := tx.Get(shapeKey(group, topic))
	switch {
	case err != nil:
		return resume.Topic{}, err
	case !found:
		return now, own(tx).Put(shapeKey(group, topic), encodeShape(now))
	}
	return parseShape(b)
}

// errShapeChanged means that the number of partitions of a topic has changed while it was read, and
// matters. The partition is looked up again.
var errShapeChanged = errors.New("hapax: the number of partitions has changed")

// encodeShape: version 1 | topic id 16 | partitions u32.
func encodeShape(s resume.Topic) []byte {
	return binary.BigEndian.AppendUint32(append([]byte{1}, s.ID[:]...), s.Partitions)
}

func parseShape(b []byte) (s resume.Topic, err error) {
	if len(b) != 21 || b[0] != 1 {
		return s, unknownForm("the number of partitions of a topic", b)
	}
	copy(s.ID[:], b[1:])
	s.Partitions = binary.BigEndian.Uint32(b[17:])
	return s, nil
}
