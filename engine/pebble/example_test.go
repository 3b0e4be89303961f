package pebble_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
)

// A claim is still there when the store is opened again.
func ExampleOpen() {
	parent, err := os.MkdirTemp("", "claims")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(parent)
	dir := filepath.Join(parent, "claims") // Open creates it

	event := engine.Event{
		Scope: "billing", ID: []byte("order-1"), Time: time.Now(), Origin: engine.Origin{Topic: "orders"},
	}
	for range 2 {
		store, err := pebble.Open(dir, pebble.Options{})
		if err != nil {
			log.Fatal(err) // storage.ErrLocked: another process has the store open
		}
		eng, err := engine.Open(store, engine.Options{RetentionWeeks: 4})
		if err != nil {
			log.Fatal(err)
		}
		res, err := eng.TryClaim(context.Background(), event)
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

// A backup is made while claims continue. It is a store that can be opened like any other.
func ExampleStore_Backup() {
	ctx := context.Background()
	parent, err := os.MkdirTemp("", "claims")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(parent)
	dir, backup := filepath.Join(parent, "claims"), filepath.Join(parent, "backup")
	event := engine.Event{
		Scope: "billing", ID: []byte("order-1"), Time: time.Now(), Origin: engine.Origin{Topic: "orders"},
	}

	store, err := pebble.Open(dir, pebble.Options{})
	if err != nil {
		log.Fatal(err)
	}
	eng, err := engine.Open(store, engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	if _, err := eng.TryClaim(ctx, event); err != nil {
		log.Fatal(err)
	}
	if err := eng.Admin().Backup(ctx, backup); err != nil { // calls Store.Backup
		log.Fatal(err)
	}

	restored, err := pebble.Open(backup, pebble.Options{})
	if err != nil {
		log.Fatal(err)
	}
	other, err := engine.Open(restored, engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer other.Close()
	res, err := other.TryClaim(ctx, event)
	fmt.Println(res.Verdict, err)
	// Output: duplicate <nil>
}
