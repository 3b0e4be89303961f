package engine_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// A slowReader is a store whose next read of a claim may be held after it has read.
type slowReader struct {
	*storetest.Mem
	hold atomic.Pointer[heldRead]
}

type heldRead struct{ read, resume chan struct{} }

func (s *slowReader) Claim(key []byte) ([]byte, bool, error) {
	b, found, err := s.Mem.Claim(key)
	if h := s.hold.Swap(nil); h != nil {
		close(h.read)
		<-h.resume
	}
	return b, found, err
}

var _ storage.Store = (*slowReader)(nil)

// A look that has read a claim whose caller has left, and ends when another caller's claim has
// replaced it, does not put the old record into the cache: its event would be a Duplicate although
// the new claim is pending, or released.
func TestTheCacheDoesNotKeepAClaimThatWasReplacedBecauseItsCallerHasLeft(t *testing.T) {
	s := &slowReader{Mem: storetest.NewMem(storage.Identity{})}
	e := open(t, s, engine.Options{})
	e.AwaitBehind(t)
	t.Cleanup(s.ReleaseSyncs)

	events := manyEvents(257) // two parts: the last event is withdrawn after the others
	last := events[256]
	s.HoldSyncs()
	left(t, e, func() { awaitHeld(t, s.Mem) }, events...)
	s.StepSync()
	awaitHeld(t, s.Mem) // the first part is being withdrawn

	reached, apply := make(chan struct{}, 1), make(chan struct{})
	s.Before(storetest.OpApply, func(int) error {
		select {
		case reached <- struct{}{}:
		default:
		}
		<-apply
		return nil
	})
	leased := last
	leased.Lease = time.Minute
	second := make(chan engine.Result, 1)
	go func() { second <- claim(t, e, leased) }() // instead of the withdrawal
	receive(t, reached)
	s.StepSync()
	for stats(t, e).AtRisk > 1 { // until the first part is withdrawn
		runtime.Gosched()
	}

	h := &heldRead{make(chan struct{}), make(chan struct{})}
	s.hold.Store(h)
	slow := make(chan engine.Result, 1)
	go func() { slow <- claim(t, e, last) }()
	receive(t, h.read)
	close(apply)
	s.ReleaseSyncs()
	r := receive(t, second)
	wantVerdict(t, r, engine.Claimed)
	close(h.resume)
	wantVerdict(t, receive(t, slow), engine.Pending)
	if err := e.Release(ctx, r.Lease); err != nil {
		t.Fatal(err)
	}
	wantVerdict(t, claim(t, e, last), engine.Claimed)
}
