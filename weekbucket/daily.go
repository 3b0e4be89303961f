package weekbucket

import "time"

const day = 24 * time.Hour

// NextDaily returns the next instant strictly after now whose time of day in UTC is at. A nightly
// run can be scheduled with NextDaily(clock.Now(), 3*time.Hour). The result is in UTC and at most
// 24 hours after now.
//
// at is the time since midnight, 0 <= at < 24h. Any other value is taken modulo 24 hours; the code
// that reads it from a configuration must check it.
func NextDaily(now time.Time, at time.Duration) time.Time {
	at = (at%day + day) % day
	next := now.UTC().Truncate(day).Add(at) // midnight UTC, because Truncate counts from the start of year 1
	if !next.After(now) {
		next = next.Add(day)
	}
	return next
}
