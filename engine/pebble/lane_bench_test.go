package pebble_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/pebble"
)

// Six goroutines move money between 50 accounts, 500 moves in each transaction. The metrics are
// moves a second and how often a move was run.
//
//	go test ./engine/pebble -run - -bench MovesBetween -benchtime 100000x -count 3
func BenchmarkMovesBetweenAccounts(b *testing.B) {
	for _, accounts := range []string{"shared", "own"} {
		for _, lane := range []bool{false, true} {
			b.Run(fmt.Sprintf("accounts=%s/lane=%t", accounts, lane), func(b *testing.B) { benchMoves(b, accounts == "own", lane) })
		}
	}
}

const (
	movers       = 6
	movesInBatch = 500
	accounts     = 50
)

func benchMoves(b *testing.B, own, lane bool) {
	store, err := pebble.Open(b.TempDir(), pebble.Options{})
	if err != nil {
		b.Fatal(err)
	}
	e, err := engine.Open(store, engine.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	runs := make([]int, movers)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range movers {
		m := mover{e: e, rnd: rand.New(rand.NewPCG(1, uint64(i))), prefix: "shared"}
		if own {
			m.prefix = fmt.Sprint(i)
		}
		if lane {
			m.member = driver.JoinLane(e, time.Second)
		}
		wg.Go(func() {
			for range (b.N + movesInBatch - 1) / movesInBatch {
				if err := m.move(&runs[i]); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	all := 0
	for _, n := range runs {
		all += n
	}
	n := float64((b.N + movesInBatch - 1) / movesInBatch * movesInBatch * movers)
	b.ReportMetric(n/time.Since(began).Seconds(), "moves/s")
	b.ReportMetric(float64(all)/n, "runs/move")
}

type mover struct {
	e      *engine.Engine
	member *driver.LaneMember
	rnd    *rand.Rand
	prefix string
	n      int
}

func (m *mover) move(runs *int) error {
	return driver.Update(context.Background(), m.e, func(tx *engine.Tx) error {
		for range movesInBatch {
			*runs++
			m.n++
			ev := engine.Event{Scope: "bench", ID: fmt.Appendf(nil, "%p %d", m, m.n), Time: time.Now(), Origin: engine.Origin{Topic: "moves"}}
			if r, err := tx.TryClaim(ev); err != nil || r.Verdict != engine.Claimed {
				return fmt.Errorf("%v, %w", r.Verdict, err)
			}
			from := m.rnd.IntN(accounts)
			if err := m.add(tx, from, -1); err != nil {
				return err
			}
			if err := m.add(tx, (from+1+m.rnd.IntN(accounts-1))%accounts, 1); err != nil {
				return err
			}
		}
		return nil
	}, driver.UpdateOptions{Retries: 1_000_000, AllowUnsyncedDuplicates: true, Lane: m.member})
}

func (m *mover) add(tx *engine.Tx, account int, amount int64) error {
	key := fmt.Appendf(nil, "%s/%d", m.prefix, account)
	v, found, err := tx.Get(key)
	if err != nil {
		return err
	}
	var balance int64
	if found {
		balance = int64(binary.BigEndian.Uint64(v))
	}
	return tx.Put(key, binary.BigEndian.AppendUint64(nil, uint64(balance+amount)))
}
