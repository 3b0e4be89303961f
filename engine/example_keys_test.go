package engine_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

func ExampleEngine_Scan() {
	ctx := context.Background()
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	err = eng.Update(ctx, func(tx *engine.Tx) error {
		for _, due := range []string{"due/09:00", "due/10:30", "due/12:15", "paid/08:00"} {
			if err := tx.Put([]byte(due), []byte("invoice")); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	for kv, err := range eng.Scan(ctx, engine.Range{Prefix: []byte("due/"), After: []byte("due/09:00")}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %s\n", kv.Key, kv.Value)
	}
	// Output:
	// due/10:30 invoice
	// due/12:15 invoice
}
