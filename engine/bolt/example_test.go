package bolt_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
)

// A small device keeps its claims in one file, which can grow to 64 MiB.
func ExampleOpen() {
	parent, err := os.MkdirTemp("", "device")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(parent)
	dir := filepath.Join(parent, "claims") // Open creates it

	reading := engine.Event{
		Scope: "meter", ID: []byte("reading-1"), Time: time.Now(), Origin: engine.Origin{Topic: "readings"},
	}
	for range 2 { // the claim is still there when the store is opened again
		store, err := bolt.Open(dir, bolt.Options{MaxFileBytes: 64 << 20})
		if err != nil {
			log.Fatal(err) // storage.ErrLocked: another process has the store open
		}
		eng, err := engine.Open(store, engine.Options{RetentionWeeks: 2})
		if err != nil {
			log.Fatal(err)
		}
		res, err := eng.TryClaim(context.Background(), reading)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(res.Verdict)
		if err := eng.Close(); err != nil { // also closes the store
			log.Fatal(err)
		}
	}
	// Output:
	// claimed
	// duplicate
}
