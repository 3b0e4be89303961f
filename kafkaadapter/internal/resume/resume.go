// Package resume decides where the reading of a partition begins: it takes what is known of the store,
// the group's commit and the log, and returns an offset or the reason for which there is none.
package resume

import "errors"

// A Policy says where to read if the store and Kafka do not agree, see kafkaadapter.RecoveryPolicy.
type Policy uint8

// The policies.
const (
	Stop Policy = iota
	TrustStore
	TrustKafka
	StartOver
)

// Policies has the policies of kinds of disagreement. A kind without one stops the partition.
type Policies map[error]Policy

// Facts are what is known of a partition when it is assigned.
type Facts struct {
	Self      Author  // the store
	Store     *Offset // nil: the store has none
	Committed *Commit // nil: nothing is committed in Kafka
	Topic     Topic   // the broker's current one
	Start     int64   // of the log
	End       int64   // of the log, one after its last record
	EpochEnd  int64   // the end of the epoch that the store read last, -1 if unknown

	Transactional bool   // the mode of the route
	FromEnd       bool   // a partition without an offset is read from its end
	EndBefore     *int64 // the end when the partition began to wait for the store; nil if it did not
	Before        *Topic // as it was last seen; nil if its number of partitions does not matter
}

// An Offset is the store's, see engine.Offset.
type Offset struct {
	Next        int64
	LeaderEpoch int32
	TopicID     [16]byte
}

// A Commit is the group's offset in Kafka, see brokers.Commit.
type Commit struct {
	Offset   int64
	Epoch    int32
	Metadata string
}

// A Topic is the id of a topic, zero if the broker has no topic ids, and the number of its partitions.
// Producers choose a partition by that number: if it changes, the copies of an event may go to
// partitions of different pinned consumers.
type Topic struct {
	ID         [16]byte
	Partitions uint32
}

// Follows reports whether a topic has the same number of partitions as before. A broker that has not
// learned of added partitions still reports the earlier number.
func (t Topic) Follows(before Topic) bool {
	if t.ID == before.ID && t.ID != [16]byte{} {
		return t.Partitions <= before.Partitions
	}
	return t.Partitions == before.Partitions
}

// A Beginning is the offset from which a partition is read.
type Beginning struct {
	Offset int64
	Epoch  int32  // -1 if it is unknown
	Way    Policy // the policy that was applied, Stop if store and Kafka agreed
	Kind   error  // the disagreement, nil if there was none
}

// BeginOpen decides where a partition is read without its store. The facts have the state of the store
// if this assignment knows it. A commit of another consumer is a matter of policy, as with an empty
// store.
func (f *Facts) BeginOpen(p Policies) (b Beginning, refused error) {
	_, ours := ParseMetadata(f.Metadata())
	if kind := f.disagreement(); f.Store == nil && (errors.Is(kind, ErrEmptyStore) && ours || errors.Is(kind, ErrRanOpen)) {
		return f.inLog(Beginning{Offset: f.Committed.Offset, Epoch: -1}, p)
	}
	return f.Begin(p)
}

// Begin returns where a partition is read, or the kind of disagreement for which it is not.
func (f *Facts) Begin(p Policies) (b Beginning, refused error) {
	b, refused = f.begin(p)
	switch {
	case refused != nil, f.Before == nil, f.Topic.Follows(*f.Before):
	case p[ErrPartitionsChanged] != TrustStore:
		return b, ErrPartitionsChanged
	case b.Kind == nil:
		b.Kind, b.Way = ErrPartitionsChanged, TrustStore
	}
	return b, refused
}

// begin is Begin without the number of partitions.
func (f *Facts) begin(p Policies) (b Beginning, refused error) {
	kind := f.disagreement()
	if kind == nil {
		return f.inLog(f.agreed(), p)
	}
	if errors.Is(kind, ErrRanOpen) {
		return f.inLog(Beginning{Offset: f.Committed.Offset, Epoch: -1, Way: TrustKafka, Kind: kind}, p)
	}
	b = Beginning{Kind: kind, Way: p[kind], Epoch: -1}
	switch {
	case b.Way == TrustStore && f.Store != nil:
		b.Offset = f.Store.Next // its epoch is ignored: it may be the cause of the disagreement
	case b.Way == TrustKafka && f.Committed != nil:
		b.Offset = f.Committed.Offset
	case b.Way == StartOver:
		b.Offset = f.Start
		return b, nil
	default:
		return b, kind
	}
	return f.inLog(b, p)
}

// agreed returns where to begin when the offsets in the store and in Kafka are consistent.
func (f *Facts) agreed() Beginning {
	switch {
	case f.Store != nil:
		return Beginning{Offset: f.Store.Next, Epoch: f.Store.LeaderEpoch}
	case f.FromEnd && f.EndBefore != nil:
		return Beginning{Offset: max(f.Start, min(f.End, *f.EndBefore)), Epoch: -1}
	case f.FromEnd:
		return Beginning{Offset: f.End, Epoch: -1}
	}
	return Beginning{Offset: f.Start, Epoch: -1}
}

// inLog checks that an offset can be read, and applies the policy if it cannot.
func (f *Facts) inLog(b Beginning, p Policies) (in Beginning, refused error) {
	var kind error
	switch {
	case b.Offset < f.Start:
		kind = ErrBelowLog
	case b.Offset > f.End:
		kind = ErrAboveLog
	case f.EpochEnd >= 0 && f.Store != nil && b.Offset == f.Store.Next && b.Offset > f.EpochEnd:
		kind = ErrLogDiverged
	default:
		return b, nil
	}
	switch way := p[kind]; {
	case way == TrustStore: // of ErrLogDiverged; the epoch of the replaced records is forgotten
		return Beginning{Offset: b.Offset, Epoch: -1, Way: way, Kind: kind}, nil
	case way == StartOver:
		return Beginning{Offset: f.Start, Epoch: -1, Way: way, Kind: kind}, nil
	case way == TrustKafka && f.Committed != nil && f.Committed.Offset >= f.Start && f.Committed.Offset <= f.End:
		return Beginning{Offset: f.Committed.Offset, Epoch: -1, Way: way, Kind: kind}, nil
	}
	return b, kind
}

// disagreement returns how the store's offset and the commit contradict each other, nil if they do
// not. Whether the offset is within the log is checked later.
func (f *Facts) disagreement() error {
	by, ours := ParseMetadata(f.Metadata())
	open := ParseOpenMark(f.Metadata())
	switch {
	case f.Store != nil && f.Store.TopicID != f.Topic.ID && f.Store.TopicID != [16]byte{} && f.Topic.ID != [16]byte{}:
		return ErrRecreated
	case f.Committed != nil && ours && by != f.Self:
		return ErrForeignStore
	case open.Is:
		return f.afterOpen(open)
	case f.Store == nil && f.Committed != nil:
		return ErrEmptyStore
	case f.Store == nil || f.Committed == nil:
		return nil
	case ours && f.Committed.Offset > f.Store.Next:
		return ErrKafkaAhead
	case !ours && f.Committed.Offset != f.Store.Next:
		return ErrOffsetReset
	}
	return nil
}

// afterOpen is disagreement for a commit that was made while the store was unavailable.
func (f *Facts) afterOpen(m OpenMark) error {
	switch {
	case m.By != (Author{}) && m.By != f.Self:
		return ErrForeignStore
	case f.Store == nil || f.Committed.Offset > f.Store.Next:
		return ErrRanOpen
	case f.Transactional && max(f.Committed.Offset, f.Start) < m.Until && m.Until <= f.Store.Next:
		return ErrModeChanged // AtMostOnce would handle them without claims
	}
	return nil // the records that the store has beyond it were claimed
}

// Metadata returns that of the group's commit.
func (f *Facts) Metadata() string {
	if f.Committed == nil {
		return ""
	}
	return f.Committed.Metadata
}
