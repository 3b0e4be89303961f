package identify

import (
	"encoding/binary"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/weekbucket"
)

// secondsBelow is the limit below which a count since 1970 is in seconds; other counts are in
// milliseconds.
const secondsBelow = 100_000_000_000

// parseTime parses a time in the forms that Rules lists. The result is in UTC and within the years
// 1 to 9999.
func parseTime(b []byte) (time.Time, bool) {
	var at time.Time
	if allDigits(b) {
		n, err := strconv.ParseInt(string(b), 10, 64)
		if err != nil {
			return time.Time{}, false
		}
		at = sinceEpoch(n)
	} else if len(b) == 8 && b[0] == 0 { // the highest byte is 0 below the year 10000, and 0 is no digit
		at = sinceEpoch(int64(binary.BigEndian.Uint64(b)))
	} else if at.UnmarshalText(b) != nil {
		return time.Time{}, false
	}
	return at.UTC(), inYears(at)
}

func sinceEpoch(n int64) time.Time {
	if n < secondsBelow {
		return time.Unix(n, 0)
	}
	return time.UnixMilli(n)
}

func allDigits(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(b) > 0
}

// inYears reports whether at is in a week that exists.
func inYears(at time.Time) bool {
	_, err := weekbucket.Of(at)
	return err == nil
}

// An id with a time outside these years is considered an id of another kind that looks the same.
// The limits are in Unix milliseconds.
const (
	firstIDTime = 946_684_800_000   // 2000-01-01
	afterIDTime = 4_102_444_800_000 // 2100-01-01
)

// An id whose time is far from that of its record only looks like a UUIDv7 or a ULID: it may be a
// hash in the form of a UUID. Its time would put the event into a week that is rejected.
const (
	idBeforeStamp = 366 * 24 * time.Hour
	idAfterStamp  = 48 * time.Hour
)

// nearStamp reports whether the time of an id is near the record's timestamp, if it has one.
func nearStamp(at time.Time, r *kgo.Record) bool {
	if r.Attrs.TimestampType() < 0 || r.Timestamp.UnixMilli() < 0 {
		return true
	}
	ahead := at.Sub(r.Timestamp)
	return ahead <= idAfterStamp && ahead >= -idBeforeStamp
}

// timeOfID reads the time from an id that is a UUIDv7 or a ULID; the rule is zero if it is neither.
func timeOfID(id []byte) (time.Time, TimeRule) {
	var ms int64
	var rule TimeRule
	switch len(id) {
	case 36:
		u, err := uuid.ParseBytes(id)
		if err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
			return time.Time{}, 0
		}
		ms, rule = int64(binary.BigEndian.Uint64(u[:8])>>16), TimeUUIDv7
	case ulid.EncodedSize:
		u, err := ulid.ParseStrict(string(id))
		if err != nil || allDigits(id) {
			return time.Time{}, 0
		}
		ms, rule = int64(u.Time()), TimeULID
	}
	if ms < firstIDTime || ms >= afterIDTime {
		return time.Time{}, 0
	}
	return time.UnixMilli(ms).UTC(), rule
}
