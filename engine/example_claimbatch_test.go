package engine_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// One goroutine has two batches in flight: while the store writes the first, it starts the second.
func ExampleEngine_StartClaimBatch() {
	e, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()

	ctx, now := context.Background(), time.Now()
	handle := func(ids []string, batch *engine.ClaimBatch) {
		results, err := batch.Wait(ctx)
		if err != nil {
			log.Fatal(err)
		}
		for i, res := range results {
			fmt.Println(ids[i], res.Verdict)
		}
	}

	var waiting []string
	var inFlight *engine.ClaimBatch
	for _, ids := range [][]string{{"a", "b"}, {"b", "c"}, {"a", "d"}} { // as they are polled
		events := make([]engine.Event, len(ids))
		for i, id := range ids {
			events[i] = engine.Event{Scope: "s", ID: []byte(id), Time: now, Origin: engine.Origin{Topic: "t"}}
		}
		started := e.StartClaimBatch(ctx, events)
		if inFlight != nil {
			handle(waiting, inFlight)
		}
		waiting, inFlight = ids, started
	}
	handle(waiting, inFlight)
	// Output:
	// a claimed
	// b claimed
	// b duplicate
	// c claimed
	// a duplicate
	// d claimed
}
