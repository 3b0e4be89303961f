package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// A watcher keeps the summaries of transactions.
type watcher struct {
	summaries []string
}

func (*watcher) Claiming(context.Context, []engine.Event) func([]engine.Result) { return nil }

func (w *watcher) Updating(context.Context) engine.TxObserver {
	return engine.TxObserver{Ended: func(judged []engine.VerdictCounts, committed bool, err error) {
		text := fmt.Sprintf("committed %v, %v:", committed, err)
		for _, j := range judged {
			text += fmt.Sprintf(" %s/%s/%d", j.Scope, j.Topic, j.Partition)
			for _, v := range engine.Verdicts {
				if j.Kept[v]+j.Undone[v] > 0 {
					text += fmt.Sprintf(" %v %d-%d", v, j.Kept[v], j.Undone[v])
				}
			}
		}
		w.summaries = append(w.summaries, text)
	}}
}

func (*watcher) Synced(time.Duration, int) {}

func (w *watcher) want(t *testing.T, summaries ...string) {
	t.Helper()
	if !slices.Equal(w.summaries, summaries) {
		t.Errorf("observed\n%q\nwant\n%q", w.summaries, summaries)
	}
	w.summaries = nil
}

func TestObserverGetsTheVerdictsOfATransactionWhenItEnds(t *testing.T) {
	w := &watcher{}
	e, _ := openMem(t, engine.Options{Observer: w})
	try := func(tx *engine.Tx, scope, id string, partition int32) {
		t.Helper()
		ev := event(id)
		ev.Scope, ev.Origin = scope, engine.Origin{Topic: "t", Partition: partition}
		if _, err := tx.TryClaim(ev); err != nil {
			t.Error(err)
		}
	}
	update(t, e, func(tx *engine.Tx) {
		try(tx, "s", "a", 1)
		try(tx, "s", "a", 1)
		point, err := tx.Savepoint()
		if err != nil {
			t.Fatal(err)
		}
		try(tx, "s", "b", 1)
		try(tx, "s", "c", 2)
		if len(w.summaries) > 0 {
			t.Error("observed before the end")
		}
		if err := tx.RollbackTo(point); err != nil {
			t.Fatal(err)
		}
		try(tx, "s", "d", 2)
	})
	w.want(t, "committed true, <nil>: s/t/1 claimed 1-1 duplicate 1-0 s/t/2 claimed 1-1")

	undone := errors.New("undone")
	err := e.Update(ctx, func(tx *engine.Tx) error {
		try(tx, "s", "e", 3)
		return undone
	})
	if !errors.Is(err, undone) {
		t.Error(err)
	}
	w.want(t, "committed false, undone: s/t/3 claimed 1-0")

	func() {
		defer func() { _ = recover() }()
		_ = e.Update(ctx, func(tx *engine.Tx) error {
			try(tx, "s", "e", 3)
			panic("broken")
		})
	}()
	w.want(t, "committed false, <nil>: s/t/3 claimed 1-0")
}

func TestObserverGetsEachRunOfATransaction(t *testing.T) {
	w := &watcher{}
	e, _ := openMem(t, engine.Options{Observer: w})
	runs := 0
	err := e.Update(ctx, func(tx *engine.Tx) error {
		if _, _, err := tx.Get([]byte("k")); err != nil {
			return err
		}
		if runs++; runs == 1 { // another transaction writes what this one has read
			if err := e.Update(ctx, func(other *engine.Tx) error { return other.Put([]byte("k"), nil) }); err != nil {
				return err
			}
		}
		return tx.Put([]byte("k"), []byte("v"))
	}, engine.Retries(1))
	if err != nil {
		t.Fatal(err)
	}
	w.want(t, "committed true, <nil>:", fmt.Sprintf("committed false, %v:", engine.ErrConflict), "committed true, <nil>:")
}
