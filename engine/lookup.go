package engine

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

// Several goroutines look up the claims of a large request. Each takes shares until none is left,
// so that all end at about the same time.
const (
	shareOfLookUps     = 8                  // look-ups in a share
	goroutineOfLookUps = 4 * shareOfLookUps // look-ups per goroutine; they take much longer than starting it
)

// A share is a part of the candidates of a request, for one goroutine.
type share struct {
	set      claimSet // shares the keys of the request
	at, end  int      // its part of the request's found
	err      error
	panicked any // the store's panic value, nil if it did not panic
}

var errGoexit = errors.New("a goroutine that looks up claims was ended")

// lookUpAll is lookUp in several goroutines if there is much to look up, so that the disk reads of
// one caller overlap. The goroutines have ended when it returns. If the store panicked in one of
// them, lookUpAll panics.
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

// lookUps returns the maximum number of claims that are looked up.
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

// share divides the candidates, in order, into shares with about the same number of look-ups.
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

// join adds the claims found in the shares.
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
	clear(r.found[len(r.found):shares[len(shares)-1].end]) // the memory is reused and must not keep records alive
}

// lookUp answers the candidates that are duplicates in the cache or the store. It does not look up
// those that the filters showed to be new. If an earlier event of the batch could replace the
// claim, because its fingerprint or time of sending differs, the answer is left to the committer.
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
