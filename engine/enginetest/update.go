package enginetest

import (
	"context"
	"errors"
	"slices"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
)

var (
	errModel   = errors.New("the closure fails")
	modelPanic = "the closure panics"
)

// update runs a random transaction, inside which others may run.
func (c *checker) update(t *rapid.T) {
	if len(c.open) == 3 {
		return
	}
	x := newTxModel(c.model)
	c.open = append(c.open, x.changed)
	end := ""
	err := func() (err error) {
		defer func() {
			if p := recover(); p == modelPanic {
				err = errModel
			} else if p != nil {
				panic(p)
			}
		}()
		return driver.Update(context.Background(), c.e, func(tx *engine.Tx) error {
			in := &txChecker{c, t, tx, x}
			for range rapid.IntRange(0, 8).Draw(t, "steps") {
				in.step()
			}
			end = rapid.SampledFrom([]string{"commit", "commit", "commit", "fail", "panic"}).Draw(t, "end")
			switch end {
			case "fail":
				return errModel
			case "panic":
				panic(modelPanic)
			}
			return nil
		}, driver.UpdateOptions{Lane: c.lane})
	}()
	c.open = c.open[:len(c.open)-1]
	for k := range x.claims {
		delete(c.held, k)
	}
	want := []error{errModel}
	if end == "commit" {
		want = x.outcome()
	}
	expected := func(w error) bool {
		return errors.Is(err, w) || errors.As(w, new(*engine.AddError)) && sameError(err, w)
	}
	if !slices.ContainsFunc(want, expected) {
		c.Fatalf("the transaction ended with %v, want one of %v", err, want)
	}
	if err == nil {
		x.commit()
	}
}

// step makes one call in a transaction.
func (c *txChecker) step() {
	key := rapid.SampledFrom(modelKeys[:3]).Draw(c.t, "key")
	partition := rapid.Int32Range(0, 1).Draw(c.t, "partition")
	var err error
	switch do := rapid.SampledFrom([]string{"claim", "claim", "claim", "reclaim", "reclaim", "letter", "letter", "finish", "finish", "data", "unclaim", "unclaim", "get", "get", "scan", "add", "add", "put", "delete", "offset", "setOffset", "save", "back", "ahead", "outside", "inner"}).Draw(c.t, "do"); do {
	case "claim", "reclaim", "letter", "finish", "data", "unclaim":
		c.stepOfClaim(do)
		return
	case "ahead":
		err = c.lookAhead()
	case "get":
		c.get(key)
		return
	case "scan":
		c.scan()
		return
	case "offset":
		c.offset(partition)
		return
	case "put":
		err = c.put(key)
	case "delete":
		err = c.remove(key)
	case "add":
		c.add(key)
		return
	case "setOffset":
		err = c.setOffset(partition)
	case "save":
		err = c.save()
	case "back":
		err = c.back()
	case "outside":
		rapid.SampledFrom([]func(*rapid.T){c.claim, c.batch, c.useLease, c.useLease, c.forget, c.hold, c.dropWeek, c.dropExpired, c.dropScope}).Draw(c.t, "outside")(c.t)
		return
	case "inner":
		c.update(c.t)
		return
	}
	if c.x.lost != errors.Is(err, engine.ErrConflict) || !c.x.lost && err != nil {
		c.Fatalf("a step of a transaction: %v", err)
	}
}

// stepOfClaim makes one call about a claim.
func (c *txChecker) stepOfClaim(do string) {
	switch do {
	case "claim", "reclaim":
		c.claimIn(do == "reclaim")
	case "letter":
		c.letter()
	case "finish":
		c.finishIn()
	case "data":
		c.setData()
	case "unclaim":
		c.unclaim()
	}
}
