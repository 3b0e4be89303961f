package bench

import (
	"context"

	"github.com/hapax-dev/hapax/engine"
)

// check looks whether everything that was acknowledged is there, and, in the mode with the work,
// whether claim, counter and offset agree. Nothing is claimed meanwhile.
func (r *killRun) check() error {
	for p := range r.Parts {
		part := &r.Parts[p]
		next, end := part.Told, part.Told
		if r.Mode == KillWork {
			var err error
			if next, err = r.offset(p); err != nil {
				return err
			}
			if next < part.Told {
				r.say.line("mismatch %d %d the offset is %d", p, part.Told, next)
			}
			end = max(next, part.Told) + checkAhead
		}
		for at := part.Checked; at < end; at += checkStep {
			if err := r.checkSome(p, at, min(at+checkStep, end), next); err != nil {
				return err
			}
		}
		r.say.line("checked %d %d", p, part.Told)
	}
	return nil
}

// checkStep is how many counters one transaction reads.
const checkStep = 1000

// checkSome looks at some positions of a partition whose offset is next.
func (r *killRun) checkSome(p int, from, to, next uint64) error {
	counts := make([]uint64, to-from)
	if r.Mode == KillWork {
		err := r.e.Update(context.Background(), func(tx *engine.Tx) (err error) {
			for i := range counts {
				if counts[i], err = counter(tx, r.Log.number(p, from+uint64(i))); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	var arena []byte
	for at := from; at < to; at++ {
		ev, _ := r.Log.event(r.Log.number(p, at), arena[:0])
		_, found, err := r.e.Lookup(context.Background(), ev.Scope, ev.ID, ev.Time)
		if err != nil {
			return err
		}
		r.judgeOne(p, at, next, found, counts[at-from])
	}
	return nil
}

func (r *killRun) judgeOne(p int, at, next uint64, found bool, count uint64) {
	if !found && at < r.Parts[p].Told {
		r.say.line("lost %d %d", p, at)
	}
	if r.Mode != KillWork {
		return
	}
	switch {
	case count > 1:
		r.say.line("mismatch %d %d counted %d times", p, at, count)
	case found != (count == 1):
		r.say.line("mismatch %d %d claim there: %v, counter: %d", p, at, found, count)
	case !found && at < next:
		r.say.line("mismatch %d %d no claim below the offset %d", p, at, next)
	}
}
