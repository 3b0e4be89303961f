package engine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// Two engines on one store would number their batches alike.
func TestASecondEngineOnAStoreIsRefused(t *testing.T) {
	store := storetest.NewMem(storage.Identity{})
	boom := errors.New("boom")
	store.FailAt(storetest.OpScanState, 1, boom)
	if _, err := engine.Open(store, engine.Options{DefaultScope: "orders"}); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	first, err := engine.Open(store, engine.Options{DefaultScope: "orders"}) // the caller still owned it
	if err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Open(store, engine.Options{DefaultScope: "orders"}); !errors.Is(err, storage.ErrInUse) {
		t.Errorf("a second engine: %v", err)
	}
	if got, err := first.TryClaim(t.Context(), engine.Event{ID: []byte("a"), Time: time.Now(), Origin: engine.Origin{Topic: "orders"}}); err != nil || got.Verdict != engine.Claimed {
		t.Errorf("the first engine: %v, %v", got.Verdict, err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Open(store, engine.Options{DefaultScope: "orders"}); !errors.Is(err, storage.ErrInUse) {
		t.Errorf("an engine on a closed store: %v", err)
	}
}
