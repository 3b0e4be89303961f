package claimer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
)

type hapaxClaims struct {
	eng  *engine.Engine
	at   time.Time
	next atomic.Int64 // offset of origins
}

func openHapax(_ context.Context, o *Order) (claims, error) {
	store, err := pebble.Open(o.Dir, pebble.Options{})
	if err != nil {
		return nil, err
	}
	eng, err := engine.Open(store, engine.Options{})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &hapaxClaims{eng: eng, at: o.Log.Source.Latest.Start()}, nil
}

func (h *hapaxClaims) claim(ctx context.Context, ids []uuid.UUID) (fresh int, err error) {
	events := make([]engine.Event, len(ids))
	offset := h.next.Add(int64(len(ids))) - int64(len(ids))
	for i := range ids {
		events[i] = engine.Event{Scope: "peers", ID: ids[i][:], Time: h.at, Origin: engine.Origin{Topic: "peers", Offset: offset + int64(i)}}
	}
	results, err := h.eng.TryClaimBatch(ctx, events)
	if err != nil {
		return 0, err
	}
	for i := range results {
		switch v := results[i].Verdict; v {
		case engine.Claimed:
			fresh++
		case engine.Duplicate:
		default:
			return fresh, errors.Join(fmt.Errorf("the verdict is %v", v), results[i].Err)
		}
	}
	return fresh, nil
}

func (h *hapaxClaims) close() error { return h.eng.Close() }
