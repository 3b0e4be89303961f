package listener_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"github.com/hapax-dev/hapax/correlation"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/listener"
	"github.com/hapax-dev/hapax/telemetry"
)

// A listener of a queue of prizes. The queue delivers one message twice.
func ExampleWrap() {
	type Prize struct {
		Headers map[string]string
		Winner  string
	}
	ctx := context.Background()
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{}) // a service opens engine/bolt or engine/pebble
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()

	allocate := func(_ context.Context, p Prize) error {
		fmt.Println("a prize for", p.Winner)
		return nil
	}
	handle, err := listener.Wrap(eng, allocate, listener.Options[Prize]{
		Queue:     "prizes",
		ID:        func(p Prize) string { return p.Headers[correlation.Header] },
		Telemetry: telemetry.Options{Logger: slog.New(slog.DiscardHandler)},
	})
	if err != nil {
		log.Fatal(err)
	}

	message := Prize{Headers: map[string]string{}, Winner: "Ada"}
	correlation.Ensure(message.Headers) // by the producer, once for each logical send
	for range 2 {
		fmt.Println(handle(ctx, message)) // nil: the queue removes the message
	}
	// Output:
	// a prize for Ada
	// <nil>
	// <nil>
}

// The result of a handler is kept with the claim. Each duplicate gets it without another run.
func ExampleWrapResult() {
	type Order struct{ ID, Item string }
	ctx := context.Background()
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{}) // a service opens engine/bolt or engine/pebble
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()

	tickets := 0
	book := func(_ context.Context, o Order) ([]byte, error) {
		tickets++
		return fmt.Appendf(nil, "ticket %d for %s", tickets, o.Item), nil
	}
	handle, err := listener.WrapResult(eng, book, listener.Options[Order]{
		Queue:     "orders",
		ID:        func(o Order) string { return o.ID },
		Telemetry: telemetry.Options{Logger: slog.New(slog.DiscardHandler)},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, order := range []Order{{"1", "a concert"}, {"2", "a play"}, {"1", "a concert"}} {
		result, err := handle(ctx, order)
		fmt.Printf("%s %v\n", result, err)
	}
	// Output:
	// ticket 1 for a concert <nil>
	// ticket 2 for a play <nil>
	// ticket 1 for a concert <nil>
}
