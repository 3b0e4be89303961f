package engine_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/keyspace"
	"github.com/hapax-dev/hapax/weekbucket"
)

func TestNightlyRunsAtItsHourAndCatchesUpOnMissedNights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2000, 1, 5, 10, 0, 0, 0, time.UTC))) // a Wednesday
		var skew atomic.Int64
		clock := func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
		m := storetest.NewMem(storage.Identity{})
		type run struct {
			at time.Time
			r  engine.DropReport
		}
		runs := make(chan run, 100)
		e, err := engine.Open(m, engine.Options{RetentionWeeks: 1, MaxWeeksPerRun: 2, AllowedSkew: 365 * 24 * time.Hour, Clock: clock,
			Nightly: engine.Nightly{Report: func(r engine.DropReport, err error) {
				if err != nil {
					t.Error(err)
				}
				runs <- run{clock().UTC(), r}
			}}})
		if err != nil {
			t.Fatal(err)
		}
		for week := -1; week < 10; week++ {
			wantVerdict(t, claim(t, e, at("a", clock().AddDate(0, 0, 7*week))), engine.Claimed)
		}
		next := func(want time.Time, weeks int) {
			t.Helper()
			got := <-runs
			if !got.at.Equal(want) || got.r.Weeks != weeks {
				t.Fatalf("ran at %v and dropped %d weeks, want %v and %d", got.at, got.r.Weeks, want, weeks)
			}
		}
		day := func(d int) time.Time { return time.Date(2000, 1, d, 3, 0, 0, 0, time.UTC) }
		next(time.Date(2000, 1, 5, 10, 1, 0, 0, time.UTC), 0) // no engine has run before
		next(day(6), 0)
		next(day(7), 0)
		next(day(8), 0)
		next(day(9), 0)
		next(day(10), 1) // Monday

		// suspended for five weeks: runs within the hour, then each night
		skew.Add(int64(5 * 7 * 24 * time.Hour))
		r := <-runs
		if late := r.at.Sub(day(10).Add(5 * 7 * 24 * time.Hour)); late < 0 || late > time.Hour || r.r.Weeks != 2 {
			t.Fatalf("after the jump ran at %v and dropped %d", r.at, r.r.Weeks)
		}
		next(day(11).AddDate(0, 0, 35), 2)
		next(day(12).AddDate(0, 0, 35), 1)
		next(day(13).AddDate(0, 0, 35), 0)

		// set back: the next night is the next one by the new clock
		skew.Add(-int64(20 * 24 * time.Hour))
		next(day(14).AddDate(0, 0, 15), 0)
		next(day(15).AddDate(0, 0, 15), 0)
		skew.Add(-int64(2 * time.Hour))
		if r := <-runs; r.at.Sub(day(15).AddDate(0, 0, 15)) > 24*time.Hour {
			t.Fatal("a night was left out:", r.at)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A process that is never alive at 03:00 drops its weeks, too, but not before its consumers had time
// to place their holds.
func TestAMissedNightIsMadeUpForAMinuteAfterOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2000, 1, 5, 10, 0, 0, 0, time.UTC)))
		disk := storetest.NewDisk()
		open := func(dir string) *engine.Engine {
			t.Helper()
			m, err := disk.Open(dir, storage.Identity{})
			if err != nil {
				t.Fatal(err)
			}
			e, err := engine.Open(m, engine.Options{RetentionWeeks: 1})
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		closed := func(e *engine.Engine) {
			t.Helper()
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
		}
		// a process that is alive from 10:00 to 10:30 each day
		for day := range 70 {
			e := open("a")
			wantVerdict(t, claim(t, e, at("a", time.Now())), map[bool]engine.Verdict{true: engine.Claimed, false: engine.Duplicate}[day == 0 || time.Now().Weekday() == time.Monday])
			before := e.Retention().OldestWeek()
			time.Sleep(59 * time.Second)
			if e.Retention().OldestWeek() != before {
				t.Fatal("dropped before the consumers had time")
			}
			time.Sleep(29*time.Minute + time.Second)
			if this := weekOf(t, time.Now()); e.Retention().OldestWeek() != this-1 {
				t.Fatalf("day %d: kept from %v", day, e.Retention().OldestWeek())
			}
			if day == 30 {
				if err := e.Admin().Backup(ctx, "b"); err != nil {
					t.Fatal(err)
				}
			}
			closed(e)
			time.Sleep(23*time.Hour + 30*time.Minute)
		}
		// a backup, opened to look at it
		b := open("b")
		before := b.Retention().OldestWeek()
		time.Sleep(time.Hour)
		if b.Retention().OldestWeek() != before {
			t.Error("a backup that was just opened has dropped weeks")
		}
		closed(b)
		time.Sleep(23 * time.Hour)
		b = open("b") // in use now
		time.Sleep(time.Hour)
		if b.Retention().OldestWeek() == before {
			t.Error("a backup that is in use drops nothing")
		}
		closed(b)
	})
}

// A slow consumer places its holds when its group has rebalanced and its brokers have answered.
func TestTheRunOfAMissedNightWaitsForTheHoldsOfConsumers(t *testing.T) {
	const hold, other = "kafka/g/in/0", "kafka/g/in/1"
	for _, tt := range []struct {
		name     string
		earlier  bool          // an earlier run has left a hold
		begins   time.Duration // of the consumer, after Open; 0 = never
		complete time.Duration // until it knows its partitions
		places   time.Duration // until it has placed the hold that keeps the oldest week; 0 = never
		drops    time.Duration // when weeks must be dropped
	}{
		{"no consumer", false, 0, 0, 0, time.Minute},
		{"a consumer that is expected does not begin", true, 0, 0, 0, 10 * time.Minute},
		{"a consumer that is expected begins late and has its holds", true, 8 * time.Minute, 8 * time.Minute, 9 * time.Minute, 9 * time.Minute},
		{"a consumer without partitions", false, 30 * time.Second, 20 * time.Minute, 0, 20 * time.Minute},
		{"a consumer that places a hold after an hour", false, 30 * time.Second, 20 * time.Minute, time.Hour, time.Hour},
		{"a consumer that waits for its brokers until the next night", false, 30 * time.Second, 0, 0, 17 * time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(time.Date(2000, 1, 5, 10, 0, 0, 0, time.UTC)))
				disk := storetest.NewDisk()
				open := func(o engine.Options) *engine.Engine {
					m, err := disk.Open("a", storage.Identity{})
					if err != nil {
						t.Fatal(err)
					}
					o.RetentionWeeks = 1
					e, err := engine.Open(m, o)
					if err != nil {
						t.Fatal(err)
					}
					return e
				}
				e := open(engine.Options{})
				wantVerdict(t, claim(t, e, at("a", time.Now())), engine.Claimed)
				if tt.earlier {
					if err := e.SetHold(ctx, other, time.Now().AddDate(1, 0, 0)); err != nil {
						t.Fatal(err)
					}
				}
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * 7 * 24 * time.Hour)

				runs := make(chan engine.DropReport, 10)
				e = open(engine.Options{Nightly: engine.Nightly{Report: func(r engine.DropReport, err error) {
					if err != nil {
						t.Error(err)
					}
					runs <- r
				}}})
				opened := time.Now()
				after := func(d time.Duration, do func()) {
					if d > 0 {
						time.AfterFunc(d, do)
					}
				}
				var complete atomic.Bool
				after(tt.begins, func() {
					driver.Own(e, driver.Ownership{Owner: keyspace.Kafka, Group: "g", Holds: func() ([]string, bool) {
						if tt.places == 0 {
							return nil, complete.Load()
						}
						return []string{hold}, complete.Load()
					}})
				})
				after(tt.complete, func() { complete.Store(true) })
				after(tt.places, func() {
					err := e.Update(ctx, func(tx *engine.Tx) error {
						return driver.As(tx, keyspace.Kafka).SetHold(hold, e.Retention().OldestWeek().Start())
					})
					if err != nil {
						t.Error(err)
					}
				})
				r := <-runs
				if late := time.Since(opened) - tt.drops; late < 0 || late > 2*time.Second {
					t.Errorf("the run began %v after Open, want %v", time.Since(opened), tt.drops)
				}
				if held := r.HeldBy == hold; held != (tt.places > 0) {
					t.Errorf("%+v", r)
				}
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A hold that a consumer places in the first minutes counts.
func TestHoldsPlacedAfterOpenKeepTheWeeksOfAMissedNight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2000, 1, 5, 10, 0, 0, 0, time.UTC)))
		e, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{RetentionWeeks: 5})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		wantVerdict(t, claim(t, e, at("a", time.Now())), engine.Claimed)
		if err := e.SetHold(ctx, "group", time.Now()); err != nil {
			t.Fatal(err)
		}
		held := weekOf(t, time.Now())
		time.Sleep(20 * 7 * 24 * time.Hour)
		wantVerdict(t, claim(t, e, at("b", time.Now().AddDate(0, 0, -7))), engine.Claimed)
		time.Sleep(48 * time.Hour)
		if e.Retention().OldestWeek() > held {
			t.Errorf("dropped up to %v, the hold keeps %v", e.Retention().OldestWeek(), held)
		}
		if err := e.ReleaseHold(ctx, "group"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(48 * time.Hour)
		if e.Retention().OldestWeek() <= held {
			t.Errorf("kept from %v without a hold", e.Retention().OldestWeek())
		}
	})
}

func TestNothingIsDroppedIfNightlyIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{RetentionWeeks: 1, Nightly: engine.Nightly{Off: true}})
		if err != nil {
			t.Fatal(err)
		}
		oldest := e.Retention().OldestWeek()
		for range 10 {
			wantVerdict(t, claim(t, e, at("a", time.Now())), engine.Claimed)
			time.Sleep(7 * 24 * time.Hour)
		}
		if e.Retention().OldestWeek() != oldest {
			t.Error("weeks were dropped")
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, at := range []time.Duration{-1, 24*time.Hour + 1} {
		_, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{Nightly: engine.Nightly{At: at}})
		if err == nil || !strings.Contains(err.Error(), "Nightly.At") {
			t.Errorf("%v: %v", at, err)
		}
	}
}

// A run under a clock that was ahead does not keep a process that is never alive at 03:00 from
// dropping its weeks.
func TestANightInTheFutureIsAMissedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2000, 1, 5, 10, 0, 0, 0, time.UTC)))
		disk := storetest.NewDisk()
		alive := func(ahead time.Duration) (oldest weekbucket.Week) {
			t.Helper()
			m, err := disk.Open("a", storage.Identity{})
			if err != nil {
				t.Fatal(err)
			}
			e, err := engine.Open(m, engine.Options{RetentionWeeks: 1, Clock: func() time.Time { return time.Now().Add(ahead) }})
			if err != nil {
				t.Fatal(err)
			}
			if ahead == 0 {
				claim(t, e, at("a", time.Now()))
			}
			time.Sleep(20 * time.Minute)
			oldest = e.Retention().OldestWeek()
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			return oldest
		}
		alive(0)
		alive(10 * 365 * 24 * time.Hour)
		for range 5 {
			time.Sleep(7 * 24 * time.Hour)
			if oldest, want := alive(0), weekOf(t, time.Now())-1; oldest != want {
				t.Fatalf("kept from %v, want %v", oldest, want)
			}
		}
	})
}
