package watermilldedup_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/integrations/watermilldedup"
)

func repository(t *testing.T, store storage.Store) *watermilldedup.Repository {
	t.Helper()
	r, err := watermilldedup.NewRepository(open(t, store), "repository", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOneOfManyRacersGetsANewKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := storetest.NewMem(storage.Identity{})
		r := repository(t, m)
		for range 2 {
			var racers sync.WaitGroup
			var fresh atomic.Int64
			for range 1000 {
				racers.Go(func() {
					duplicate, err := r.IsDuplicate(context.Background(), "k")
					if err != nil {
						t.Error(err)
					}
					if !duplicate {
						fresh.Add(1)
					}
				})
			}
			racers.Wait()
			if fresh.Load() != 1 {
				t.Errorf("%d racers get a new key", fresh.Load())
			}
			if duplicate, err := repository(t, m.CrashClone(0)).IsDuplicate(context.Background(), "k"); !duplicate || err != nil {
				t.Errorf("after a power cut: %v, %v", duplicate, err)
			}
			time.Sleep(time.Hour)
		}
	})
}

func TestARepositoryWhoseStoreFailsReturnsAnError(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	r := repository(t, m)
	m.Crash()
	if duplicate, err := r.IsDuplicate(context.Background(), "k"); duplicate || err == nil {
		t.Errorf("%v, %v", duplicate, err)
	}
}

// Watermill's Deduplicator marks the key before the handler runs, and New does not: the test counts
// the handled ones of 20 messages whose first attempt fails.
func TestDeduplicatorLosesFailedMessagesAndNewDoesNot(t *testing.T) {
	watermills := &middleware.Deduplicator{
		KeyFactory: watermilldedup.UUID, Repository: repository(t, storetest.NewMem(storage.Identity{})), Timeout: time.Minute,
	}
	for name, c := range map[string]struct {
		middleware message.HandlerMiddleware
		handled    int
	}{
		"Deduplicator": {watermills.Middleware, 0},
		"New":          {dedup(t, inMemory(t), nil), 20},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t, c.middleware)
			var mu sync.Mutex
			attempts, handled := map[string]int{}, 0
			b.router.AddConsumerHandler("h", "in", b, func(m *message.Message) error {
				mu.Lock()
				defer mu.Unlock()
				if attempts[m.UUID]++; attempts[m.UUID] == 1 {
					return errHandler
				}
				handled++
				return nil
			})
			b.run(t)
			for i := range 20 {
				b.send(t, string(rune('a'+i)))
			}
			if handled != c.handled || len(attempts) != 20 {
				t.Errorf("%d of %d messages are handled", handled, len(attempts))
			}
		})
	}
}
