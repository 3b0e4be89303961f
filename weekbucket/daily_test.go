package weekbucket

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestNextDailyIsStrictlyAfterNow(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	at := func(month time.Month, day, hour, minute, sec, ns int) time.Time {
		return time.Date(2025, month, day, hour, minute, sec, ns, time.UTC)
	}
	tests := []struct {
		name string
		now  time.Time
		at   time.Duration
		want time.Time
	}{
		{"earlier that day", at(5, 5, 1, 0, 0, 0), 3 * time.Hour, at(5, 5, 3, 0, 0, 0)},
		{"one nanosecond to go", at(5, 5, 2, 59, 59, 999999999), 3 * time.Hour, at(5, 5, 3, 0, 0, 0)},
		{"at that instant", at(5, 5, 3, 0, 0, 0), 3 * time.Hour, at(5, 6, 3, 0, 0, 0)},
		{"later that day", at(5, 5, 12, 0, 0, 0), 3 * time.Hour, at(5, 6, 3, 0, 0, 0)},
		{"midnight, at midnight", at(5, 5, 0, 0, 0, 0), 0, at(5, 6, 0, 0, 0, 0)},
		{"the last nanosecond of the day", at(12, 31, 12, 0, 0, 0), day - 1, at(12, 31, 23, 59, 59, 999999999)},
		{"into the next year", at(12, 31, 12, 0, 0, 0), 3 * time.Hour, time.Date(2026, 1, 1, 3, 0, 0, 0, time.UTC)},
		{"02:30 in Berlin on the day that has none", time.Date(2025, 3, 30, 1, 30, 0, 0, berlin), 3 * time.Hour, at(3, 30, 3, 0, 0, 0)},
		{"the day of 25 hours in Berlin", time.Date(2025, 10, 26, 12, 0, 0, 0, berlin), 3 * time.Hour, at(10, 27, 3, 0, 0, 0)},
		{"tomorrow in Berlin, today in UTC", time.Date(2025, 5, 6, 0, 30, 0, 0, berlin), 23 * time.Hour, at(5, 5, 23, 0, 0, 0)},
		{"27:00 is 03:00", at(5, 5, 1, 0, 0, 0), 27 * time.Hour, at(5, 5, 3, 0, 0, 0)},
		{"-1:00 is 23:00", at(5, 5, 23, 30, 0, 0), -time.Hour, at(5, 6, 23, 0, 0, 0)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := NextDaily(tt.now, tt.at)
			if !got.Equal(tt.want) || got.Location() != time.UTC {
				t.Errorf("NextDaily(%v, %v) = %v, want %v", tt.now, tt.at, got, tt.want)
			}
		})
	}
}

func TestNextDailyComesOnceADayAtItsTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := instants.Draw(t, "now")
		at := time.Duration(rapid.Int64Range(0, int64(day)-1).Draw(t, "at"))
		next := NextDaily(now, at)
		if wait := next.Sub(now); wait <= 0 || wait > day {
			t.Fatalf("NextDaily(%v, %v) = %v, in %v", now, at, next, wait)
		}
		if got := next.Sub(next.Truncate(day)); got != at {
			t.Fatalf("NextDaily(%v, %v) = %v, at %v", now, at, next, got)
		}
		if again := NextDaily(next, at); again.Sub(next) != day {
			t.Fatalf("after %v comes %v, want one day later", next, again)
		}
	})
}
