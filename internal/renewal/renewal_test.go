package renewal

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

var errStore = errors.New("the store")

// A store takes some time for each renewal, and then answers.
type store struct {
	took  []time.Duration
	err   error
	times []time.Duration // since began
	began time.Time
}

func (s *store) renew(context.Context) error {
	s.times = append(s.times, time.Since(s.began))
	if len(s.took) > 0 {
		time.Sleep(s.took[0])
		s.took = s.took[1:]
	}
	return s.err
}

func (s *store) want(t *testing.T, times ...time.Duration) {
	t.Helper()
	if len(s.times) != len(times) {
		t.Fatalf("renewed after %v, want %v", s.times, times)
	}
	for i := range times {
		if s.times[i] != times[i] {
			t.Errorf("renewed after %v, want %v", s.times, times)
		}
	}
}

const second = time.Second

func TestALeaseThatLastsIsNotRenewedFirst(t *testing.T) {
	for late, times := range map[time.Duration][]time.Duration{0: nil, 30*second - 1: nil, 30 * second: {30 * second}, time.Hour: {time.Hour}} {
		synctest.Test(t, func(t *testing.T) {
			s := store{began: time.Now()}
			l := Lease{s.renew, 30 * second, s.began}
			time.Sleep(late)
			if err := l.Ensure(t.Context()); err != nil {
				t.Error(err)
			}
			s.want(t, times...)
		})
	}
}

func TestARenewalThatWasLateIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store{began: time.Now(), took: []time.Duration{40 * second, 29 * second}}
		l := Lease{s.renew, 30 * second, s.began.Add(-time.Hour)}
		if err := l.Ensure(t.Context()); err != nil {
			t.Error(err)
		}
		s.want(t, 0, 40*second)
		s.err, l.From = errStore, s.began
		if err := l.Ensure(t.Context()); !errors.Is(err, errStore) {
			t.Error(err)
		}
	})
}

// The thirds count from the beginning of the claim and of each renewal, not from their ends.
func TestALeaseIsRenewedAfterEachThird(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store{began: time.Now(), took: []time.Duration{0, 4 * second, 13 * second}}
		l := Lease{s.renew, 30 * second, s.began}
		time.Sleep(8 * second)
		stop := l.Keep(t.Context(), func(error) bool { return false })
		time.Sleep(44 * second)
		stop()
		s.want(t, 10*second, 20*second, 30*second, 43*second)
	})
}

func TestStopWaitsForTheRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store{began: time.Now(), took: []time.Duration{5 * second}}
		l := Lease{s.renew, 30 * second, s.began}
		ctx, cancel := context.WithCancel(t.Context())
		stop := l.Keep(ctx, func(error) bool { return false })
		cancel() // the lease is kept although the caller has gone
		time.Sleep(11 * second)
		stop()
		if took := time.Since(s.began); took != 15*second {
			t.Errorf("stop returned after %v", took)
		}
		time.Sleep(time.Hour)
		s.want(t, 10*second)
	})
}

func TestErrorsAreTriedAgainUntilTheLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store{began: time.Now(), err: errStore}
		l := Lease{s.renew, 30 * second, s.began}
		stop := l.Keep(t.Context(), func(error) bool { return len(s.times) == 2 })
		time.Sleep(time.Hour)
		stop()
		s.want(t, 10*second, 20*second)
	})
}
