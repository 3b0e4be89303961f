package claimer

import (
	"context"
	"sync"

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
