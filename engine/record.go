package engine

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// A State says how far the handling of a claimed event is. The values are on disk for ever.
type State uint8

const (
	_ State = iota

	// Done is the state of a claim that needs nothing more: whoever was told Claimed has, or had, the event. It never
	// changes any more.
	Done

	// DeadLettered is the state of a claim whose event was put aside unhandled (Tx.DeadLetter). It may be opened again,
	// once (Tx.TryReclaim).
	DeadLettered
)

// String returns the state's name in snake case, as it stands in reports.
func (s State) String() string {
	switch s {
	case Done:
		return "done"
	case DeadLettered:
		return "dead_lettered"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// A Record is what is kept about a claim.
type Record struct {
	State State
	// Generation counts how often the claim was opened again; 0 for its first life.
	Generation uint64
	// FirstSeen is when the claim was made, by the engine's clock, in UTC, in milliseconds. Opening the claim again
	// does not change it.
	FirstSeen time.Time
	// Origin is the delivery that made the claim, also after it was opened again by another one.
	Origin Origin
}

// reopened reports whether the claim was opened again since it was made.
func (r *Record) reopened() bool { return r.Generation > 0 }

// opens reports whether the claim may be opened again by whoever names this generation.
func (r *Record) opens(generation uint64) bool {
	return r.State == DeadLettered && r.Generation == generation && generation < math.MaxUint64
}

// The record on disk:
//
//	+-------+--------------------+-------------------------+---------------+-------------------+----------------+
//	| state | generation uvarint | first seen ms, varint   | topic uvarint | partition varint  | offset varint  |
//	+-------+--------------------+-------------------------+---------------+-------------------+----------------+
//
// first seen is in Unix milliseconds; topic is its number in the store's table of names (names.go); varints as in
// encoding/binary.
func appendRecord(dst []byte, r *Record, topic uint64) []byte {
	dst = append(dst, byte(r.State))
	dst = binary.AppendUvarint(dst, r.Generation)
	dst = binary.AppendVarint(dst, r.FirstSeen.UnixMilli())
	dst = binary.AppendUvarint(dst, topic)
	dst = binary.AppendVarint(dst, int64(r.Origin.Partition))
	return binary.AppendVarint(dst, r.Origin.Offset)
}

// parseRecord reads a record; the topic is left to be looked up by its number.
func parseRecord(b []byte) (r Record, topic uint64, err error) {
	d := decoder{rest: b}
	r.State = State(d.byte())
	r.Generation = d.uvarint()
	ms := d.varint()
	topic = d.uvarint()
	partition := d.varint()
	r.Origin.Offset = d.varint()
	r.Origin.Partition = int32(partition)
	r.FirstSeen = time.UnixMilli(ms).UTC()
	switch {
	case d.err != nil:
		return Record{}, 0, fmt.Errorf("%w: claim record %x: %w", ErrDamaged, b, d.err)
	case len(d.rest) != 0, int64(r.Origin.Partition) != partition:
		return Record{}, 0, fmt.Errorf("%w: claim record %x is malformed", ErrDamaged, b)
	case r.State != Done && r.State != DeadLettered:
		return Record{}, 0, fmt.Errorf("%w: claim record with state %d", ErrNewerFormat, r.State)
	}
	return r, topic, nil
}
