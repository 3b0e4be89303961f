package engine

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

// Goroutines look up the claims of a request. Each takes one share after the other until none is
// left, so that all end at about the same time.
const (
	shareOfLookUps     = 8                  // look-ups of a share
	goroutineOfLookUps = 4 * shareOfLookUps // look-ups for each goroutine: they take much longer than to start it
)

// A share is a part of the candidates of a request, for one goroutine.
type share struct {
	set      claimSet // its keys are those of the request
	at, end  int      // of its room in found of the request
	err      error
	panicked any // what the store panicked with, nil if it did not
}

var errGoexit = errors.New("a goroutine that looks up claims was ended")

// lookUpAll is lookUp by several goroutines, if there is much to look up: one caller then uses all
// processors, and its reads of the disk overlap. They have ended when it returns. It panics if the
// store did in one of them.
func (f *finder) lookUpAll(r *claimSet) error {
	n := r.lookUps()
	if n < 2*goroutineOfLookUps {
		return f.lookUp(r)
	}
	shares := r.share()
	var taken atomic.Int64
	work := func() {
		for i := taken.Add(1) - 1; int(i) < len(shares); i = taken.Add(1) - 1 {
			shares[i].lookUp(f)
		}
	}
	func() {
		var ended sync.WaitGroup
		defer ended.Wait() // also if the store ends this goroutine
		for range n/goroutineOfLookUps - 1 {
			ended.Go(work)
		}
		work()
	}()
	for i := range shares {
		s := &shares[i]
		if s.panicked != nil {
			panic(s.panicked)
		}
		if s.err != nil {
			return s.err
		}
	}
	r.join(shares)
	return nil
}

// lookUp is finder.lookUp, in any goroutine.
func (s *share) lookUp(f *finder) {
	s.panicked = errGoexit
	defer func() {
		if p := recover(); p != nil {
			s.panicked = p
		}
	}()
	s.err = f.lookUp(&s.set)
	s.panicked = nil
}

// lookUps returns how many claims are looked up at most, and found at most.
func (r *claimSet) lookUps() (n int) {
	for i := range r.claims {
		n += r.claims[i].lookUps()
	}
	return n
}

func (c *candidate) lookUps() int {
	if c.absent {
		return 0
	}
	return 1 + c.nearEnd - c.nearAt
}

// share divides the candidates, in order, into shares of about as many look-ups.
func (r *claimSet) share() (shares []share) {
	end := len(r.found)
	for i, from, at := 0, 0, end; i < len(r.claims); i++ {
		end += r.claims[i].lookUps()
		if end-at >= shareOfLookUps || i == len(r.claims)-1 {
			shares = append(shares, share{at: at, end: end, set: claimSet{claims: r.claims[from : i+1], arena: r.arena, near: r.near}})
			from, at = i+1, end
		}
	}
	r.found = slices.Grow(r.found, end-len(r.found))
	for i := range shares {
		s := &shares[i]
		s.set.found = r.found[s.at:s.at:s.end]
	}
	return shares
}

// join adds what was found for the shares.
func (r *claimSet) join(shares []share) {
	for i := range shares {
		s := &shares[i]
		if !s.set.looked {
			continue
		}
		if !r.looked || s.set.epoch < r.epoch {
			r.epoch = s.set.epoch
		}
		r.looked = true
		r.found = append(r.found, s.set.found...)
	}
	clear(r.found[len(r.found):shares[len(shares)-1].end]) // the memory is used again: it keeps no records
}

// lookUp answers the candidates that are duplicates in the cache or the store. Those that the
// filters showed to be new are not looked up. A claim that another event could take, one with another
// fingerprint or sent at another time, is left to the committer: one before it in the batch may.
func (f *finder) lookUp(r *claimSet) error {
	for i := range r.claims {
		if c := &r.claims[i]; !c.absent {
			if err := f.lookUpOne(r, c); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *finder) lookUpOne(r *claimSet, c *candidate) error {
	c.asOf = f.core.applied.at.Load()
	rec, found, err := f.known(r, &c.place)
	c.absent = !found
	found = found && !c.takes(&rec) && !f.core.left.has(r.key(&c.place))
	if err == nil && !found && c.nearEnd > c.nearAt {
		rec, _, found, err = f.knownNear(r, c)
	}
	switch {
	case isConfined(err):
		*c.result, c.answered, c.absent = Result{Verdict: Failed, Err: err}, true, false
		return nil
	case err == nil && found && !rec.free(c.seen, 0):
		*c.result, c.answered = c.answer(&rec), true
	}
	return err
}
