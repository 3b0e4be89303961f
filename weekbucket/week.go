package weekbucket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// A Week is the number of whole weeks since Monday 0001-01-01T00:00Z.
//
// [Of], [Parse] and [FromKey] return only weeks from [Min] to [Max]. A larger number, made by
// arithmetic, contains no instant, and [FromKey] rejects its key. Weeks are unsigned: w-n wraps
// round to such a number when n > w.
type Week uint32

const (
	// Min is the week of Monday 0001-01-01, and the zero Week.
	Min Week = 0
	// Max is the week of Monday 9999-12-27. Its last two days lie in the
	// year 10000 and are out of range.
	Max Week = 521722
)

// KeySize is the length in bytes of a week's key.
const KeySize = 4

// ErrOutOfRange is wrapped by the errors for instants, dates and keys outside
// the years 1 to 9999 UTC.
var ErrOutOfRange = errors.New("outside the years 1 to 9999")

// Seconds since the Unix epoch. No week and no year begins within a second, so whole seconds
// suffice.
const (
	firstSecond   = -62135596800 // 0001-01-01T00:00:00Z, a Monday
	lastSecond    = 253402300799 // 9999-12-31T23:59:59Z
	secondsInWeek = 7 * 24 * 60 * 60
)

// Of returns the week that t belongs to. It fails with [ErrOutOfRange] if t, in UTC, is before year
// 1 or after year 9999.
func Of(t time.Time) (Week, error) {
	s := t.Unix()
	if s < firstSecond || s > lastSecond {
		return 0, fmt.Errorf("hapax: weekbucket: %s: %w", t.UTC().Format(time.RFC3339), ErrOutOfRange)
	}
	return Week((s - firstSecond) / secondsInWeek), nil
}

// Start returns the first instant of w, a Monday at 00:00, in UTC.
func (w Week) Start() time.Time {
	return time.Unix(firstSecond+int64(w)*secondsInWeek, 0).UTC()
}

// Contains reports whether w is the week that [Of] returns for t.
func (w Week) Contains(t time.Time) bool {
	of, err := Of(t)
	return err == nil && of == w
}

// String returns the date of w's Monday, such as "2025-05-05".
func (w Week) String() string {
	return w.Start().Format(time.DateOnly)
}

// Parse is the inverse of [Week.String]. It accepts only a Monday's date, so that a mistyped day
// cannot name a week.
func Parse(s string) (Week, error) {
	t, err := time.Parse(time.DateOnly, s)
	if err != nil {
		return 0, fmt.Errorf("hapax: weekbucket: parse %q: want a Monday's date such as 2025-05-05: %w", s, err)
	}
	w, err := Of(t)
	if err != nil {
		return 0, fmt.Errorf("hapax: weekbucket: parse %q: %w", s, ErrOutOfRange)
	}
	if !w.Start().Equal(t) {
		return 0, fmt.Errorf("hapax: weekbucket: parse %q: a %s; its week is named %s", s, t.Weekday(), w)
	}
	return w, nil
}

// AppendKey appends the key of w, [KeySize] bytes, to dst and returns the extended slice. Keys
// compare byte by byte as their weeks do.
//
// The key is w as a big-endian uint32. Stores contain it: it never changes.
func (w Week) AppendKey(dst []byte) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(w))
}

// FromKey returns the week whose key is b. It fails if b is not [KeySize]
// bytes long, and with [ErrOutOfRange] if it names a week after [Max].
func FromKey(b []byte) (Week, error) {
	if len(b) != KeySize {
		return 0, fmt.Errorf("hapax: weekbucket: key of %d bytes, want %d", len(b), KeySize)
	}
	w := Week(binary.BigEndian.Uint32(b))
	if w > Max {
		return 0, fmt.Errorf("hapax: weekbucket: key %x: %w", b, ErrOutOfRange)
	}
	return w, nil
}
