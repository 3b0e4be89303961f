package engine

import (
	"encoding/binary"
	"fmt"
	"time"
)

// A State says how far the handling of a claimed event is. Today every claim is Done: whoever was told Claimed has, or
// had, the event.
type State uint8

// Done is the state of a claim that needs nothing more. Its value is on disk for ever.
const Done State = 1

func (s State) String() string {
	if s == Done {
		return "done"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// A Record is what is kept about a claim.
type Record struct {
	State State
	// Generation counts how often the claim was opened again; 0 for its first life.
	Generation uint64
	// FirstSeen is when the claim was made, by the engine's clock, in UTC, in milliseconds.
	FirstSeen time.Time
	// Origin is the delivery that made the claim.
	Origin Origin
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
	case r.State != Done:
		return Record{}, 0, fmt.Errorf("%w: claim record with state %d", ErrNewerFormat, r.State)
	}
	return r, topic, nil
}
