package pebble_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
)

// Six goroutines move money between 50 accounts, 100 times in a transaction: with Add, and by
// reading and writing. One operation is one movement.
func BenchmarkHotKeys(b *testing.B) {
	for name, move := range map[string]func(tx *engine.Tx, account []byte, amount int64) error{
		"Add": func(tx *engine.Tx, account []byte, amount int64) error { return tx.Add(account, amount) },
		"GetPut": func(tx *engine.Tx, account []byte, amount int64) error {
			value, found, err := tx.Get(account)
			balance := int64(0)
			if err == nil && found {
				balance, err = engine.DecodeInt64(value)
			}
			return errors.Join(err, tx.Put(account, engine.EncodeInt64(balance+amount)))
		},
	} {
		b.Run(name, func(b *testing.B) {
			store, err := pebble.Open(filepath.Join(b.TempDir(), "store"), pebble.Options{})
			if err != nil {
				b.Fatal(err)
			}
			e, err := engine.Open(store, engine.Options{ExpectedPerWeek: 1000})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			b.ResetTimer()
			var workers sync.WaitGroup
			for worker := range 6 {
				workers.Go(func() { moveMoney(b, e, move, uint64(worker), b.N/6+1) })
			}
			workers.Wait()
		})
	}
}

func moveMoney(b *testing.B, e *engine.Engine, move func(tx *engine.Tx, account []byte, amount int64) error, seed uint64, n int) {
	const perTransaction, accounts = 100, 50
	rnd := rand.New(rand.NewPCG(seed, 0))
	account := func() []byte { return fmt.Appendf(nil, "account/%02d", rnd.IntN(accounts)) }
	for ; n > 0; n -= perTransaction {
		err := e.Update(context.Background(), func(tx *engine.Tx) error {
			for range min(n, perTransaction) {
				if err := errors.Join(move(tx, account(), -1), move(tx, account(), 1)); err != nil {
					return err
				}
			}
			return nil
		}, engine.Retries(1000))
		if err != nil {
			b.Error(err)
			return
		}
	}
}
