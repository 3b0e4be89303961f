package kafkaadapter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// Pinned gives a consumer a fixed part of the partitions, without rebalancing: the partitions of
// each topic whose number modulo Count is Index. Use it for several processes that each have a store
// on their own volume, such as the pods of a StatefulSet: Index is the ordinal of the pod, and Count the
// number of replicas.
//
// An event is then a duplicate only of an event in the partitions of the same consumer. Producers
// must send all copies of an event to one partition, as they do when the record's key decides
// it. The number of a topic's partitions therefore must not change: the store keeps it, and if it has
// changed, the topic's partitions stop with ErrPartitionsChanged, unless Count is 1.
//
// Offsets are committed under Options.Group, for lag tools; no process may consume with that group
// as a member. The commit is read again before it is replaced: if a process with another store has
// committed for the partition, the partition stops with ErrForeignStore. Two processes with one
// ordinal therefore do not both continue.
type Pinned struct {
	Index int // from 0
	Count int // the number of consumers; 0: not pinned
}

// ErrPinnedChanged is returned by Run if the store was used with a different Membership.Pinned.
// Partitions would move between stores that do not have each other's claims.
var ErrPinnedChanged = errors.New("hapax: Membership.Pinned has changed for this store, and partitions would move to stores without their claims: " +
	"restore the earlier values; or, to change the number of consumers, wait until the lag is 0, stop all of them, and start each with a new store " +
	"and Recovery[ErrForeignStore] = TrustKafka: copies of earlier events are then handled again")

func (m *Membership) isPinned() bool { return m.Pinned.Count != 0 }

// label names the consumer among those of its group in metrics.
func (m *Membership) label() string {
	if m.isPinned() {
		return strconv.Itoa(m.Pinned.Index)
	}
	return m.InstanceID
}

// dependsOnShape reports whether a change of the number of partitions moves events between stores.
func (m *Membership) dependsOnShape() bool { return m.Pinned.Count > 1 }

func (s Pinned) has(partition int32) bool { return int(partition)%s.Count == s.Index }

func (m *Membership) checkPinned() error {
	switch s := m.Pinned; {
	case s == Pinned{}:
		return nil
	case s.Count < 1 || s.Index < 0 || s.Index >= s.Count:
		return fmt.Errorf("%w: Options.Membership.Pinned is %d of %d: give an Index from 0 to Count-1", ErrOption, s.Index, s.Count)
	case m.InstanceID != "" || m.ServerSideAssignment:
		return fmt.Errorf("%w: Options.Membership.Pinned is set with InstanceID or ServerSideAssignment, which are for members of a group: leave them out", ErrOption)
	}
	return nil
}

// encode: version 1 | ordinal u32 | of u32.
func (s Pinned) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{1}, uint32(s.Index)), uint32(s.Count))
}

func parsePinned(b []byte) (Pinned, error) {
	if len(b) != 9 || b[0] != 1 {
		return Pinned{}, unknownForm("the pinned partitions", b)
	}
	return Pinned{int(binary.BigEndian.Uint32(b[1:])), int(binary.BigEndian.Uint32(b[5:]))}, nil
}
