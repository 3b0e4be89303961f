package engine

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/decode"
)

// A State says how far the handling of a claimed event is. The values are stored and must not
// change.
type State uint8

const (
	_ State = iota

	// Done is the state of a final claim: the caller that got Claimed handles, or has handled, the
	// event. Without a window, a Done claim never changes.
	Done

	// DeadLettered is the state of a claim whose event was not handled but dead-lettered
	// (Tx.DeadLetter). It may be reopened once (Tx.TryReopen).
	DeadLettered

	// Leased is the state of a claim whose event is being handled by the holder of a lease
	// (Event.Lease). When the lease has expired, another caller can take over the claim.
	Leased

	// Released is the state of a claim that its holder has released: the event can be claimed
	// again.
	Released
)

// String returns the state's name in snake case, as used in reports.
func (s State) String() string {
	switch s {
	case Done:
		return "done"
	case DeadLettered:
		return "dead_lettered"
	case Leased:
		return "leased"
	case Released:
		return "released"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// A ClaimRecord has the stored data of a claim.
type ClaimRecord struct {
	State State
	// Generation counts how often the claim was reopened, or made again after its window or lease
	// had ended or it was released; 0 for the first claim.
	Generation uint64
	// FirstSeen is when the claim was made, by the engine's clock, in UTC with millisecond
	// precision. Reopening the claim of a dead letter does not change it; making a claim again
	// after its window does.
	FirstSeen time.Time
	// Origin is the delivery that made the claim, even after another delivery has reopened the
	// claim of a dead letter.
	Origin Origin
	// Window is Event.Window of that delivery in whole milliseconds, 0 if the claim lasts as long
	// as its week.
	Window time.Duration
	// SentUnixMilli is Event.Sent of that delivery in Unix milliseconds; 0 if it is unknown or there is
	// no window.
	SentUnixMilli int64
	// Owner identifies the holder of the lease on a Leased claim; 0 in every other state.
	Owner uint64
	// LeaseEnd is the end of the lease on a Leased claim, in UTC with millisecond precision; zero
	// in every other state.
	LeaseEnd time.Time
	// Fingerprint is Event.Fingerprint of the delivery that made the claim.
	Fingerprint string
	// Data is the application's result of the claim (Engine.Finish, Tx.SetData).
	Data string
}

// Expires returns when the claim's window ends. From then on the claim can be made again, except by
// a delivery that was sent within the window of the delivery that made it (Event.Sent). Expires is
// zero for a claim without a window.
func (r ClaimRecord) Expires() time.Time {
	if r.Window == 0 {
		return time.Time{}
	}
	return r.FirstSeen.Add(r.Window)
}

// free reports whether the claim can be made again, as its next generation, at time at by a
// delivery that was sent at sent (Unix milliseconds, 0 if unknown).
func (r *ClaimRecord) free(at time.Time, sent int64) bool {
	switch {
	case r.Generation == math.MaxUint64:
		return false
	case r.State == Released:
		return true
	case r.State == Leased:
		return !at.Before(r.LeaseEnd)
	}
	return r.expired(at, sent)
}

// expired reports whether the claim's window has ended for a delivery that arrives and was sent at
// these times.
func (r *ClaimRecord) expired(at time.Time, sent int64) bool {
	return r.Window > 0 && !at.Before(r.FirstSeen.Add(r.Window)) && !r.sentTogether(sent)
}

// sentTogether reports whether the delivery was sent within the claim's window of the one that made
// the claim.
func (r *ClaimRecord) sentTogether(sent int64) bool {
	if sent == 0 || r.SentUnixMilli == 0 {
		return false
	}
	return time.UnixMilli(r.SentUnixMilli).Sub(time.UnixMilli(sent)).Abs() < r.Window
}

// conflicts reports whether an event with that fingerprint is a different request than the claim's.
func (r *ClaimRecord) conflicts(fingerprint string, at time.Time, sent int64) bool {
	return fingerprint != r.Fingerprint && fingerprint != "" && r.Fingerprint != "" && !r.expired(at, sent)
}

// end ends the lease of the record with the given state and data.
func (r *ClaimRecord) end(state State, data string) {
	r.State, r.Data, r.Owner, r.LeaseEnd = state, data, 0, time.Time{}
}

// final reports whether the record can no longer change.
func (r *ClaimRecord) final() bool { return r.State == Done && r.Window == 0 }

// opens reports whether a caller with this generation may reopen the claim.
func (r *ClaimRecord) opens(generation uint64) bool {
	return r.State == DeadLettered && r.Generation == generation && generation < math.MaxUint64
}

// The record on disk:
//
//	+-----------+--------------------+-----------------------+---------------+------------------+---------------+
//	| form | st | generation uvarint | first seen ms, varint | topic uvarint | partition varint | offset varint |
//	+-----------+--------------------+-----------------------+---------------+------------------+---------------+
//	| window ms uvarint | sent ms, varint | owner u64 | lease end ms, varint | fingerprint, bytes | data, bytes |
//	+-------------------+-----------------+-----------+----------------------+--------------------+-------------+
//	  formWindow          formSent          only if Leased                     formFingerprint      formData
//
// The low three bits of the first byte are the state; the others say which fields follow the
// offset. First seen is in Unix milliseconds. Topic is its number in the store's table of names
// (internal/names). Varints are those of encoding/binary.
//
// Most records are Done, of generation 0, without window, fingerprint and data. These have the
// short form if the topic's number is below 128, partition and offset are not negative, and first
// seen is in the years 2020 to 2054:
//
//	+-----------+-------------------+------------------------------------+----------------+
//	| 80 | topic| partition uvarint | first seen - 2020-01-01 ms, 5 bytes| offset uvarint |
//	+-----------+-------------------+------------------------------------+----------------+
const (
	formShort = 0x80
	shortTime = 5             // bytes
	shortFrom = 1577836800000 // 2020-01-01 00:00 UTC

	formState  = 0x07
	formSent   = 0x08 // the time of sending is present; only with a window
	formWindow = 0x10 // the window is present, and not 0

	formFingerprint = 0x20 // the fingerprint is present, and not empty
	formData        = 0x40 // data is present, and not empty

	maxWindow = uint64(math.MaxInt64 / time.Millisecond) // in milliseconds
)

func appendRecord(dst []byte, r *ClaimRecord, topic uint64) []byte {
	if !r.fitsShort(topic) {
		return appendLongRecord(dst, r, topic)
	}
	dst = append(dst, formShort|byte(topic))
	dst = binary.AppendUvarint(dst, uint64(r.Origin.Partition))
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(r.FirstSeen.UnixMilli()-shortFrom))
	dst = append(dst, ms[8-shortTime:]...)
	return binary.AppendUvarint(dst, uint64(r.Origin.Offset))
}

// fitsShort reports whether the record has the short form.
func (r *ClaimRecord) fitsShort(topic uint64) bool {
	ms := r.FirstSeen.UnixMilli()
	return r.final() && r.Generation == 0 && r.Fingerprint == "" && r.Data == "" &&
		topic < formShort && r.Origin.Partition >= 0 && r.Origin.Offset >= 0 &&
		ms >= shortFrom && ms < shortFrom+1<<(8*shortTime)
}

func (r *ClaimRecord) hasSent() bool { return r.Window > 0 && r.SentUnixMilli != 0 }

func appendLongRecord(dst []byte, r *ClaimRecord, topic uint64) []byte {
	form := byte(r.State)
	if r.Window > 0 {
		form |= formWindow
	}
	if r.hasSent() {
		form |= formSent
	}
	if r.Fingerprint != "" {
		form |= formFingerprint
	}
	if r.Data != "" {
		form |= formData
	}
	dst = append(dst, form)
	dst = binary.AppendUvarint(dst, r.Generation)
	dst = binary.AppendVarint(dst, r.FirstSeen.UnixMilli())
	dst = binary.AppendUvarint(dst, topic)
	dst = binary.AppendVarint(dst, int64(r.Origin.Partition))
	dst = binary.AppendVarint(dst, r.Origin.Offset)
	if r.Window > 0 {
		dst = binary.AppendUvarint(dst, uint64(r.Window/time.Millisecond))
	}
	if r.hasSent() {
		dst = binary.AppendVarint(dst, r.SentUnixMilli)
	}
	if r.State == Leased {
		dst = binary.BigEndian.AppendUint64(dst, r.Owner)
		dst = binary.AppendVarint(dst, r.LeaseEnd.UnixMilli())
	}
	for _, s := range [...]string{r.Fingerprint, r.Data} {
		if s != "" {
			dst = binary.AppendUvarint(dst, uint64(len(s)))
			dst = append(dst, s...)
		}
	}
	return dst
}

// parseRecord parses a record. The caller looks up the topic by its number.
func parseRecord(b []byte) (r ClaimRecord, topic uint64, err error) {
	d := decode.Decoder{Rest: b}
	form := d.Byte()
	if form&formShort != 0 {
		return parseShortRecord(b)
	}
	r.State = State(form & formState)
	r.Generation = d.Uvarint()
	ms := d.Varint()
	topic = d.Uvarint()
	partition := d.Varint()
	r.Origin.Offset = d.Varint()
	r.Origin.Partition = int32(partition)
	r.FirstSeen = time.UnixMilli(ms).UTC()
	if form&^(formState|formSent|formWindow|formFingerprint|formData) != 0 || r.State < Done || r.State > Released {
		return ClaimRecord{}, 0, fmt.Errorf("%w: claim record of form %#x", storage.ErrNewerFormat, form)
	}
	if !r.parseMore(&d, form) {
		return ClaimRecord{}, 0, fmt.Errorf("%w: claim record %x has an invalid field", storage.ErrDamaged, b)
	}
	switch {
	case d.Bad:
		return ClaimRecord{}, 0, fmt.Errorf("%w: claim record %x is truncated or overlong", storage.ErrDamaged, b)
	case len(d.Rest) != 0, int64(r.Origin.Partition) != partition, r.fitsShort(topic):
		return ClaimRecord{}, 0, fmt.Errorf("%w: claim record %x is malformed", storage.ErrDamaged, b)
	}
	return r, topic, nil
}

func parseShortRecord(b []byte) (r ClaimRecord, topic uint64, err error) {
	d := decode.Decoder{Rest: b}
	topic = uint64(d.Byte() &^ formShort)
	partition := d.Uvarint()
	var ms [8]byte
	copy(ms[8-shortTime:], d.Take(shortTime))
	offset := d.Uvarint()
	switch {
	case d.Bad:
		return ClaimRecord{}, 0, fmt.Errorf("%w: claim record %x is truncated or overlong", storage.ErrDamaged, b)
	case len(d.Rest) != 0, partition > math.MaxInt32, offset > math.MaxInt64:
		return ClaimRecord{}, 0, fmt.Errorf("%w: claim record %x is malformed", storage.ErrDamaged, b)
	}
	r.State = Done
	r.FirstSeen = time.UnixMilli(shortFrom + int64(binary.BigEndian.Uint64(ms[:]))).UTC()
	r.Origin.Partition, r.Origin.Offset = int32(partition), int64(offset)
	return r, topic, nil
}

// parseMore parses the fields after the offset. It returns false if one of them has an invalid
// value; d.Bad reports other errors.
func (r *ClaimRecord) parseMore(d *decode.Decoder, form byte) bool {
	if form&formWindow != 0 {
		window := d.Uvarint()
		if !d.Bad && (window == 0 || window > maxWindow) {
			return false
		}
		r.Window = time.Duration(window) * time.Millisecond
	}
	if form&formSent != 0 {
		sent := d.Varint()
		if !d.Bad && (sent == 0 || form&formWindow == 0) {
			return false
		}
		r.SentUnixMilli = sent
	}
	if r.State == Leased {
		r.Owner = d.Uint64()
		r.LeaseEnd = time.UnixMilli(d.Varint()).UTC()
	}
	if form&formFingerprint != 0 {
		r.Fingerprint = string(d.Take(d.Uvarint()))
	}
	if form&formData != 0 {
		r.Data = string(d.Take(d.Uvarint()))
	}
	return d.Bad || (form&formFingerprint == 0) == (r.Fingerprint == "") && (form&formData == 0) == (r.Data == "")
}
