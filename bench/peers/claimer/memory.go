package claimer

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/google/uuid"
)

type mapClaims struct {
	mu   sync.Mutex // guards seen
	seen map[uuid.UUID]struct{}
}

func openMap(context.Context, *Order) (claims, error) {
	return &mapClaims{seen: make(map[uuid.UUID]struct{})}, nil
}

func (m *mapClaims) claim(_ context.Context, ids []uuid.UUID) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.seen)
	for _, id := range ids {
		m.seen[id] = struct{}{}
	}
	return len(m.seen) - before, nil
}

func (m *mapClaims) close() error { return nil }

type watermillClaims struct {
	repo middleware.ExpiringKeyRepository
}

func openWatermill(context.Context, *Order) (claims, error) {
	repo, err := middleware.NewMapExpiringKeyRepository(retention)
	return watermillClaims{repo}, err
}

func (w watermillClaims) claim(ctx context.Context, ids []uuid.UUID) (fresh int, err error) {
	for _, id := range ids {
		repeat, err := w.repo.IsDuplicate(ctx, id.String())
		if err != nil {
			return fresh, err
		}
		if !repeat {
			fresh++
		}
	}
	return fresh, nil
}

func (watermillClaims) close() error { return nil }
