package driver_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// The events of one batch are handled in parallel, and joined in their order.
func ExampleBeginSubTx() {
	e, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()

	batch := []string{"a", "b", "a", "c"}
	now := time.Now()
	handle := func(tx *engine.Tx, id string) error {
		res, err := tx.TryClaim(engine.Event{Scope: "s", ID: []byte(id), Time: now, Origin: engine.Origin{Topic: "t"}})
		if err != nil || res.Verdict != engine.Claimed {
			return err
		}
		if id == "b" {
			return errors.New("b cannot be handled")
		}
		return tx.Put([]byte("handled/"+id), nil)
	}

	err = e.Update(context.Background(), func(tx *engine.Tx) error {
		parts, errs := make([]driver.SubTx, len(batch)), make([]error, len(batch))
		var wg sync.WaitGroup
		for i := range batch {
			if parts[i], err = driver.BeginSubTx(tx); err != nil {
				return err
			}
			wg.Go(func() { errs[i] = handle(parts[i].Tx(), batch[i]) })
		}
		wg.Wait()
		for i, id := range batch {
			err := end(parts[i], errs[i])
			// it is the next one in order, so one more run is enough
			if errors.Is(err, driver.ErrPartOutdated) {
				if parts[i], err = driver.BeginSubTx(tx); err != nil {
					return err
				}
				errs[i] = handle(parts[i].Tx(), id)
				err = end(parts[i], errs[i])
			}
			if err != nil {
				return err
			}
			fmt.Println(id, errs[i])
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// a <nil>
	// b b cannot be handled
	// a <nil>
	// c <nil>
	// <nil>
}

// end joins a part, or discards it if its handler failed.
func end(p driver.SubTx, failed error) error {
	if failed != nil {
		return p.Discard()
	}
	return p.Join()
}
