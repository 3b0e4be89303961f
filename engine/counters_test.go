package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hapax-dev/hapax/engine"
)

var errHandler = errors.New("the handler failed")

// Verdicts count only final ones, whatever transactions roll back; attempts count all of them.
func TestVerdictsCountWhatCommittedAndAttemptsAll(t *testing.T) {
	type counts [len(engine.Verdicts) + 1]uint64
	rng := rand.New(rand.NewPCG(1, 2))
	e, _ := openMem(t, engine.Options{})
	var hold, all counts
	for round := range 300 {
		var mine, kept counts
		err := e.Update(ctx, func(tx *engine.Tx) error {
			point, err := tx.Savepoint()
			for range rng.IntN(12) {
				r, err := tx.TryClaim(event(fmt.Sprint(rng.IntN(400))))
				if err != nil {
					return err
				}
				all[r.Verdict]++
				mine[r.Verdict]++
				switch rng.IntN(6) {
				case 0:
					if err := tx.RollbackTo(point); err != nil {
						return err
					}
					mine = kept
				case 1:
					if point, err = tx.Savepoint(); err != nil {
						return err
					}
					kept = mine
				}
			}
			if round%3 == 0 {
				return errHandler
			}
			return err
		})
		if err != nil && !errors.Is(err, errHandler) {
			t.Fatal(err)
		}
		for v, n := range mine {
			if err == nil {
				hold[v] += n
			}
		}
	}
	s := stats(t, e)
	for _, v := range engine.Verdicts {
		if s.Verdicts[v] != hold[v] || s.Attempts[v] != all[v] {
			t.Errorf("%d of %d %v, want %d of %d", s.Verdicts[v], s.Attempts[v], v, hold[v], all[v])
		}
	}
	verifyClean(t, e, int(s.Verdicts[engine.Claimed]))
}

// A transaction that fails with a conflict counts only as an attempt; one that only reads counts
// once it has committed.
func TestVerdictsOfATransactionThatFailsWithAConflict(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	err := e.Update(ctx, func(tx *engine.Tx) error {
		if _, err := tx.TryClaim(event("a")); err != nil {
			return err
		}
		if _, _, err := tx.Get([]byte("balance")); err != nil {
			return err
		}
		return e.Update(ctx, func(other *engine.Tx) error { return other.Put([]byte("balance"), []byte("1")) })
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Fatal(err)
	}
	if s := stats(t, e); s.Verdicts[engine.Claimed] != 0 || s.Attempts[engine.Claimed] != 1 {
		t.Errorf("after a conflict: %v of %v", s.Verdicts, s.Attempts)
	}
	wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
	update(t, e, func(tx *engine.Tx) { _, _ = tx.TryClaim(event("a")) })
	if s := stats(t, e); s.Verdicts[engine.Duplicate] != 1 {
		t.Errorf("after a transaction that only reads: %v", s.Verdicts)
	}
}
