// Package weekbucket computes the week of an instant, and how weeks are ordered, named and encoded.
//
// A week begins on Monday at 00:00 UTC and lasts seven days. An instant belongs to the week of the
// last Monday at or before it: Sunday 23:30 UTC still to the Monday six days earlier, Monday 00:30
// UTC to the same day. Only the instant matters. The zone of a time.Time, the zone of the machine
// and daylight saving have no influence, so every machine puts an event into the same week.
//
// A [Week] is a plain number: weeks compare with <, the week after w is w+1,
// and the key form of [Week.AppendKey] sorts byte by byte in the same order.
//
// The calendar is the proleptic Gregorian one of package time, without leap seconds, from year 1 to
// year 9999. An instant outside it is rejected with [ErrOutOfRange], never moved to the nearest
// week.
//
// All functions depend only on their arguments: they read no clock, store nothing, and may be
// called concurrently.
package weekbucket
