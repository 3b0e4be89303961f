package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// A queue delivers a message twice. The second caller learns where the first one got it.
func ExampleEngine_TryClaim() {
	ctx := context.Background()
	store := storetest.NewMem(storage.Identity{}) // a service opens engine/pebble or engine/bolt
	eng, err := engine.Open(store, engine.Options{DefaultScope: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()

	happened := time.Now() // set by the producer, the same on every delivery
	for offset := range int64(2) {
		res, err := eng.TryClaim(ctx, engine.Event{
			ID:     []byte("order-1"),
			Time:   happened,
			Origin: engine.Origin{Topic: "orders", Partition: 3, Offset: 40 + offset},
		})
		if err != nil {
			log.Fatal(err) // not decided: do not acknowledge the message
		}
		switch res.Verdict {
		case engine.Claimed:
			fmt.Println("handle the order")
		case engine.Duplicate:
			fmt.Println("skip it: it was claimed at offset", res.Record.Origin.Offset)
		default: // in_flight: retry later; too_old, too_new: your policy
			fmt.Println(res.Verdict)
		}
	}
	// Output:
	// handle the order
	// skip it: it was claimed at offset 40
}

// The claim and the balance commit together, or neither does. An error rolls both back, so that the
// next delivery is handled.
func ExampleEngine_Update() {
	ctx := context.Background()
	store := storetest.NewMem(storage.Identity{}) // a service opens engine/pebble or engine/bolt
	eng, err := engine.Open(store, engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()

	event := engine.Event{
		Scope: "billing", ID: []byte("payment-1"), Time: time.Now(), Origin: engine.Origin{Topic: "payments"},
	}
	pay := func(tx *engine.Tx, working bool) error {
		res, err := tx.TryClaim(event)
		if err != nil {
			return err
		}
		fmt.Println(res.Verdict)
		if res.Verdict != engine.Claimed {
			return nil
		}
		if err := tx.Add([]byte("balance/alice"), 15); err != nil {
			return err
		}
		if !working {
			return errors.New("the printer is out of paper")
		}
		return nil
	}
	for _, working := range []bool{false, true, true} { // three deliveries
		err := eng.Update(ctx, func(tx *engine.Tx) error { return pay(tx, working) }, engine.Retries(3))
		if err != nil {
			fmt.Println(err)
		}
	}
	value, _, err := eng.Get(ctx, []byte("balance/alice"))
	if err != nil {
		log.Fatal(err)
	}
	balance, err := engine.DecodeInt64(value)
	fmt.Println(balance, err)
	// Output:
	// claimed
	// the printer is out of paper
	// claimed
	// duplicate
	// 15 <nil>
}

// A request is answered once. Its result is stored with the claim, and repeats of the request get
// the same result.
func ExampleEngine_Finish() {
	ctx := context.Background()
	store := storetest.NewMem(storage.Identity{}) // a service opens engine/pebble or engine/bolt
	eng, err := engine.Open(store, engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()

	request := engine.Event{
		Scope: "api", ID: []byte("key-7"), Time: time.Now(), Origin: engine.Origin{Topic: "POST /orders"},
		Lease: time.Minute, // the claim is pending until it is finished
	}
	first, err := eng.TryClaim(ctx, request)
	if err != nil {
		log.Fatal(err)
	}
	meanwhile, err := eng.TryClaim(ctx, request)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first.Verdict, "then", meanwhile.Verdict)

	// If this process dies here, another one can claim the request when the lease has expired.
	if err := eng.Finish(ctx, first.Lease, []byte("201 Created")); err != nil {
		log.Fatal(err) // engine.ErrLeaseLost: do not answer
	}
	later, err := eng.TryClaim(ctx, request)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(later.Verdict, "with", later.Record.Data)
	// Output:
	// claimed then pending
	// duplicate with 201 Created
}
