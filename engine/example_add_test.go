package engine_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// Many transactions move money between two accounts: none of them reads a balance, so that they do
// not conflict.
func ExampleTx_Add() {
	ctx := context.Background()
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	for _, amount := range []int64{250, 120, -30} {
		err := eng.Update(ctx, func(tx *engine.Tx) error {
			if err := tx.Add([]byte("balance/alice"), -amount); err != nil {
				return err
			}
			return tx.Add([]byte("balance/bob"), amount)
		})
		if err != nil { // an *engine.AddError names the account whose balance overflows
			log.Fatal(err)
		}
	}
	for kv, err := range eng.Scan(ctx, engine.Range{Prefix: []byte("balance/")}) {
		if err != nil {
			log.Fatal(err)
		}
		balance, err := engine.DecodeInt64(kv.Value)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %d\n", kv.Key, balance)
	}
	// Output:
	// balance/alice -340
	// balance/bob 340
}
