package versions_test

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/versions"
)

// Changes of a row arrive in the wrong order, and one of them arrives twice. Readers see the newest.
func Example() {
	ctx := context.Background()
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{}) // a service opens engine/pebble or engine/bolt
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	users, err := versions.New(eng, "users", versions.Options{})
	if err != nil {
		log.Fatal(err)
	}

	for _, change := range []versions.Row{
		{Tenant: "acme", Key: []byte("7"), Version: 3, Payload: []byte("Ada King")},
		{Tenant: "acme", Key: []byte("7"), Version: 1, Payload: []byte("Ada")},
		{Tenant: "acme", Key: []byte("7"), Version: 3, Payload: []byte("Ada King")},
		{Tenant: "acme", Key: []byte("7"), Version: 2, Payload: []byte("Ada Byron")},
	} {
		err := eng.Update(ctx, func(tx *engine.Tx) error { return users.In(tx).Put(change) })
		if err != nil {
			log.Fatal(err)
		}
	}
	res, err := users.Get(ctx, "acme", []byte("7"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("version %d: %s\n", res.Row.Version, res.Row.Payload)
	// Output: version 3: Ada King
}

// A scan returns the rows of one tenant. Deleted rows are not among them.
func ExampleTable_Scan() {
	ctx := context.Background()
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{}) // a service opens engine/pebble or engine/bolt
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	users, err := versions.New(eng, "users", versions.Options{})
	if err != nil {
		log.Fatal(err)
	}
	err = eng.Update(ctx, func(tx *engine.Tx) error {
		table := users.In(tx)
		for _, row := range []versions.Row{
			{Tenant: "acme", Key: []byte("7"), Version: 1, Payload: []byte("Ada")},
			{Tenant: "acme", Key: []byte("8"), Version: 1, Payload: []byte("Charles")},
			{Tenant: "acme", Key: []byte("9"), Version: 1, Payload: []byte("Mary")},
			{Tenant: "umbrella", Key: []byte("7"), Version: 1, Payload: []byte("Albert")},
		} {
			if err := table.Put(row); err != nil {
				return err
			}
		}
		return table.Delete("acme", []byte("8"), 2)
	})
	if err != nil {
		log.Fatal(err)
	}

	rows, err := users.Scan(ctx, versions.Selection{Tenant: "acme"})
	if err != nil {
		log.Fatal(err)
	}
	for row, err := range rows.All {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %s\n", row.Key, row.Payload)
	}
	// Output:
	// 7 Ada
	// 9 Mary
}

// Some sources omit values that did not change. Fill takes them from an older version of the row.
func ExampleOptions_fill() {
	ctx := context.Background()
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{}) // a service opens engine/pebble or engine/bolt
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	documents, err := versions.New(eng, "documents", versions.Options{
		Fill: func(newer, older []byte) (filled []byte, partial bool) { // title:text, where an empty text did not change
			_, text, _ := bytes.Cut(older, []byte(":"))
			return append(bytes.Clone(newer), text...), len(text) == 0
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	err = eng.Update(ctx, func(tx *engine.Tx) error {
		table := documents.In(tx)
		if err := table.Put(versions.Row{Tenant: "acme", Key: []byte("1"), Version: 1, Payload: []byte("Notes:a long text")}); err != nil {
			return err
		}
		return table.Put(versions.Row{Tenant: "acme", Key: []byte("1"), Version: 2, Payload: []byte("Notes, 2nd edition:"), Partial: true})
	})
	if err != nil {
		log.Fatal(err)
	}
	res, err := documents.Get(ctx, "acme", []byte("1"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("version %d: %s\n", res.Row.Version, res.Row.Payload)
	// Output: version 2: Notes, 2nd edition:a long text
}
