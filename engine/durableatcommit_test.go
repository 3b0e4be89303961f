package engine_test

import (
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storetest"
)

func TestDurableAtCommitTellsADuplicateAtOnceAndCommitsAfterIt(t *testing.T) {
	m := storetest.NewMem(engine.Identity{})
	e := open(t, m, engine.Options{})
	syncing, synced := make(chan struct{}, 10), make(chan struct{})
	m.Before(storetest.OpWait, func(int) error {
		syncing <- struct{}{}
		<-synced
		return nil
	})
	winner := make(chan error, 1)
	go func() {
		_, err := e.TryClaim(ctx, event("a"))
		winner <- err
	}()
	<-syncing // applied, and not durable yet

	told, committed := make(chan engine.Verdict, 1), make(chan error, 1)
	go func() {
		committed <- e.Update(ctx, func(tx *engine.Tx) error {
			r, err := tx.TryClaim(event("a"))
			told <- r.Verdict
			if err != nil {
				return err
			}
			return tx.Put([]byte("k"), []byte("v"))
		}, engine.DurableAtCommit())
	}()
	select {
	case v := <-told:
		if v != engine.Duplicate {
			t.Errorf("told %v", v)
		}
	case <-time.After(10 * time.Second):
		t.Error("the answer waits for the winner's sync")
	}
	select {
	case err := <-committed:
		t.Errorf("Update returned %v before what its answer rests on was durable", err)
	default:
	}
	if _, found, _ := m.CrashClone(0).State([]byte("hk")); found {
		t.Error("the write is durable before the sync")
	}
	close(synced)
	if err := <-winner; err != nil {
		t.Error(err)
	}
	if err := <-committed; err != nil {
		t.Error(err)
	}
}
