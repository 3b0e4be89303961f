package weekbucket

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones below, whatever the machine has installed

	"pgregory.net/rapid"
)

const sevenDays = 7 * 24 * time.Hour

func TestOfAtTheEdges(t *testing.T) {
	berlin, newYork := zone(t, "Europe/Berlin"), zone(t, "America/New_York")
	utc := func(s string) time.Time {
		at, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	tests := []struct {
		name string
		at   time.Time
		want string // the Monday; "" is out of range
	}{
		{"Monday's first instant", utc("2025-05-05T00:00:00Z"), "2025-05-05"},
		{"one nanosecond before it", utc("2025-05-04T23:59:59.999999999Z"), "2025-04-28"},
		{"Sunday's last millisecond", utc("2025-05-11T23:59:59.999Z"), "2025-05-05"},
		{"Sunday 23:30", utc("2025-05-11T23:30:00Z"), "2025-05-05"},
		{"Monday 00:30", utc("2025-05-12T00:30:00Z"), "2025-05-12"},
		{"midweek", utc("2025-05-07T12:00:00Z"), "2025-05-05"},
		{"a leap day", utc("2024-02-29T12:00:00Z"), "2024-02-26"},
		{"a week across two years", utc("2025-01-01T00:00:00Z"), "2024-12-30"},

		// A zone moves the wall clock across Monday's midnight, but never the week.
		{"Monday in Berlin, still Sunday in UTC", time.Date(2025, 5, 12, 1, 59, 59, 0, berlin), "2025-05-05"},
		{"two o'clock on Monday in Berlin", time.Date(2025, 5, 12, 2, 0, 0, 0, berlin), "2025-05-12"},
		{"Sunday in New York, already Monday in UTC", time.Date(2025, 5, 11, 20, 0, 0, 0, newYork), "2025-05-12"},
		{"a second earlier in New York", time.Date(2025, 5, 11, 19, 59, 59, 0, newYork), "2025-05-05"},

		// Clocks change on a Sunday, but the week ends at 00:00 UTC.
		{"Berlin springs forward, before", time.Date(2025, 3, 30, 1, 59, 59, 0, berlin), "2025-03-24"},
		{"Berlin springs forward, last instant", time.Date(2025, 3, 31, 1, 59, 59, 999999999, berlin), "2025-03-24"},
		{"Berlin springs forward, after", time.Date(2025, 3, 31, 2, 0, 0, 0, berlin), "2025-03-31"},
		{"Berlin falls back, last instant", time.Date(2025, 10, 27, 0, 59, 59, 999999999, berlin), "2025-10-20"},
		{"Berlin falls back, after", time.Date(2025, 10, 27, 1, 0, 0, 0, berlin), "2025-10-27"},
		{"New York springs forward, last instant", time.Date(2025, 3, 9, 19, 59, 59, 999999999, newYork), "2025-03-03"},
		{"New York springs forward, after", time.Date(2025, 3, 9, 20, 0, 0, 0, newYork), "2025-03-10"},
		{"New York falls back, last instant", time.Date(2025, 11, 2, 18, 59, 59, 999999999, newYork), "2025-10-27"},
		{"New York falls back, after", time.Date(2025, 11, 2, 19, 0, 0, 0, newYork), "2025-11-03"},

		{"the zero time", time.Time{}, "0001-01-01"},
		{"the end of the first week", utc("0001-01-07T23:59:59.999999999Z"), "0001-01-01"},
		{"the second week", utc("0001-01-08T00:00:00Z"), "0001-01-08"},
		{"the last second of 1969", utc("1969-12-31T23:59:59Z"), "1969-12-29"},
		{"the Unix epoch", time.Unix(0, 0), "1969-12-29"},
		{"the first Monday of 1970", utc("1970-01-05T00:00:00Z"), "1970-01-05"},
		{"the end of 2099", utc("2099-12-31T23:59:59Z"), "2099-12-28"},
		{"the last instant", utc("9999-12-31T23:59:59.999999999Z"), "9999-12-27"},

		{"just before year 1", utc("0001-01-01T00:00:00Z").Add(-1), ""},
		{"just after year 9999", utc("9999-12-31T23:59:59Z").Add(time.Second), ""},
		{"year 1 in Berlin, year 0 in UTC", time.Date(1, 1, 1, 0, 0, 0, 0, berlin), ""},
		{"year 9999 in New York, year 10000 in UTC", time.Date(9999, 12, 31, 23, 0, 0, 0, newYork), ""},
		{"year 0", time.Date(0, 12, 31, 0, 0, 0, 0, time.UTC), ""},
		{"year -1", time.Date(-1, 6, 1, 0, 0, 0, 0, time.UTC), ""},
		{"year -292277022399", time.Unix(-9223372028715321600, 0), ""},
		{"year 292277026596", time.Unix(9223372036825516800, 0), ""},
		{"the largest Unix second", time.Unix(math.MaxInt64, 0), ""},
		{"the smallest Unix second", time.Unix(math.MinInt64, 0), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, err := Of(tt.at)
			if tt.want == "" {
				if !errors.Is(err, ErrOutOfRange) {
					t.Fatalf("Of(%v) = %v, %v; want ErrOutOfRange", tt.at, w, err)
				}
				return
			}
			if err != nil || w.String() != tt.want {
				t.Fatalf("Of(%v) = %v, %v; want %s", tt.at, w, err, tt.want)
			}
		})
	}
}

func TestMinAndMaxHoldTheFirstAndLastInstant(t *testing.T) {
	first := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	last := time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC)
	if w, err := Of(first); err != nil || w != Min {
		t.Errorf("Of(%v) = %d, %v; want Min", first, w, err)
	}
	if w, err := Of(last); err != nil || w != Max {
		t.Errorf("Of(%v) = %d, %v; want Max", last, w, err)
	}
}

func TestContains(t *testing.T) {
	w := week(t, "2025-05-05")
	start := w.Start()
	tests := []struct {
		w    Week
		at   time.Time
		want bool
	}{
		{w, start, true},
		{w, start.Add(sevenDays - 1), true},
		{w, start.Add(-1), false},
		{w, start.Add(sevenDays), false},
		{w, time.Date(2025, 5, 12, 1, 0, 0, 0, zone(t, "Europe/Berlin")), true},
		{Min, time.Time{}, true},
		{Min, time.Time{}.Add(-1), false},
		{Max, Max.Start().Add(5*24*time.Hour - 1), true},
		{Max, Max.Start().Add(5 * 24 * time.Hour), false}, // 10000-01-01
		{Max + 1, (Max + 1).Start(), false},
	}
	for _, tt := range tests {
		if got := tt.w.Contains(tt.at); got != tt.want {
			t.Errorf("week %v contains %v: %v, want %v", tt.w, tt.at, got, tt.want)
		}
	}
}

func TestParseRejectsOtherDatesThanMondays(t *testing.T) {
	tests := []struct{ in, says string }{
		{"2025-05-06", "a Tuesday; its week is named 2025-05-05"},
		{"2025-05-11", "a Sunday; its week is named 2025-05-05"},
		{"", "want a Monday's date"},
		{"2025-5-5", "want a Monday's date"},
		{"2025-05-05 ", "want a Monday's date"},
		{" 2025-05-05", "want a Monday's date"},
		{"2025-05-05T00:00:00Z", "want a Monday's date"},
		{"2025-W19", "want a Monday's date"},
		{"2025-02-30", "want a Monday's date"},
		{"+025-05-05", "want a Monday's date"},
		{"0000-01-03", ErrOutOfRange.Error()},
		{"10000-01-03", "want a Monday's date"},
	}
	for _, tt := range tests {
		w, err := Parse(tt.in)
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("Parse(%q) = %v, %v; want an error that contains %q", tt.in, w, err, tt.says)
		}
	}
	if _, err := Parse("0000-01-03"); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("Parse of year 0: %v, want ErrOutOfRange", err)
	}
}

// Keys are stored: these bytes may never change.
func TestKeyEncodingIsGolden(t *testing.T) {
	tests := []struct{ week, key string }{
		{"0001-01-01", "00000000"},
		{"0001-01-08", "00000001"},
		{"1969-12-29", "00019151"},
		{"2025-05-05", "00019c99"},
		{"9999-12-27", "0007f5fa"},
	}
	for _, tt := range tests {
		w := week(t, tt.week)
		if got := hex.EncodeToString(w.AppendKey(nil)); got != tt.key {
			t.Errorf("key of %s is %s, want %s", tt.week, got, tt.key)
		}
		key, _ := hex.DecodeString(tt.key)
		if got, err := FromKey(key); err != nil || got != w {
			t.Errorf("FromKey(%s) = %v, %v; want %s", tt.key, got, err, tt.week)
		}
	}
}

func TestAppendKeyKeepsEarlierBytes(t *testing.T) {
	if got := Week(1).AppendKey([]byte("ab")); string(got) != "ab\x00\x00\x00\x01" {
		t.Errorf("got %q", got)
	}
}

func TestFromKeyRejectsWrongLengthAndRange(t *testing.T) {
	for _, b := range [][]byte{nil, {}, {0, 0, 0}, {0, 0, 0, 0, 0}} {
		if w, err := FromKey(b); err == nil {
			t.Errorf("FromKey(%x) = %v, want an error", b, w)
		}
	}
	for _, w := range []Week{Max + 1, math.MaxUint32} {
		if got, err := FromKey(w.AppendKey(nil)); !errors.Is(err, ErrOutOfRange) {
			t.Errorf("FromKey(%x) = %v, %v; want ErrOutOfRange", uint32(w), got, err)
		}
	}
}

func TestEveryInstantLiesInItsWeek(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := instants.Draw(t, "at")
		w, err := Of(at)
		if err != nil {
			t.Fatal(err)
		}
		start := w.Start()
		if start.Weekday() != time.Monday || start.Location() != time.UTC || !start.Equal(start.Truncate(day)) {
			t.Fatalf("week starts at %v, want a Monday 00:00 UTC", start)
		}
		if at.Before(start) || !at.Before(start.Add(sevenDays)) {
			t.Fatalf("%v is not in the seven days from %v", at, start)
		}
		if !w.Contains(at) || (w + 1).Contains(at) || (w - 1).Contains(at) {
			t.Fatalf("%v: not in week %v alone", at, w)
		}
		if again, err := Of(start); err != nil || again != w {
			t.Fatalf("Of(Start) = %v, %v; want %v", again, err, w)
		}
	})
}

func TestKeysSortAsTheirInstants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := instants.Draw(t, "a"), instants.Draw(t, "b")
		if b.Before(a) {
			a, b = b, a
		}
		wa, _ := Of(a)
		wb, _ := Of(b)
		if wa > wb {
			t.Fatalf("%v before %v, but week %v after %v", a, b, wa, wb)
		}
		if order := bytes.Compare(wa.AppendKey(nil), wb.AppendKey(nil)); (order == 0) != (wa == wb) || order > 0 {
			t.Fatalf("keys of %v and %v compare %d", wa, wb, order)
		}
	})
}

func TestNamesAndKeysRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := weeks.Draw(t, "week")
		if got, err := Parse(w.String()); err != nil || got != w {
			t.Fatalf("Parse(%q) = %v, %v", w.String(), got, err)
		}
		if got, err := FromKey(w.AppendKey(nil)); err != nil || got != w {
			t.Fatalf("FromKey of %v's key = %v, %v", w, got, err)
		}
	})
}

func FuzzFromKey(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 7, 0xf5, 0xfa})
	f.Add([]byte{0, 7, 0xf5, 0xfb})
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := FromKey(b)
		if err != nil {
			return
		}
		if w > Max || !bytes.Equal(w.AppendKey(nil), b) {
			t.Fatalf("FromKey(%x) = %d, whose key is %x", b, w, w.AppendKey(nil))
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("2025-05-05")
	f.Add("2025-05-06")
	f.Add("0001-01-01")
	f.Fuzz(func(t *testing.T, s string) {
		w, err := Parse(s)
		if err != nil {
			return
		}
		if w > Max || w.String() != s {
			t.Fatalf("Parse(%q) = %d, named %q", s, w, w)
		}
	})
}

// instants returns instants of the whole range, in zones up to a day from UTC.
var instants = rapid.Custom(func(t *rapid.T) time.Time {
	s := rapid.Int64Range(firstSecond, lastSecond).Draw(t, "seconds")
	ns := rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds")
	offset := rapid.IntRange(-86399, 86399).Draw(t, "offset")
	return time.Unix(s, ns).In(time.FixedZone("", offset))
})

var weeks = rapid.Map(rapid.Uint32Range(uint32(Min), uint32(Max)), func(n uint32) Week { return Week(n) })

func week(t *testing.T, s string) Week {
	t.Helper()
	w, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}
