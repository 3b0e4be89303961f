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
		Queue:  "prizes",
		ID:     func(p Prize) string { return p.Headers[correlation.Header] },
		Logger: slog.New(slog.DiscardHandler),
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
