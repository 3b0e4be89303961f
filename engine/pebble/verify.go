package pebble

import (
	"context"
	"fmt"
)

// Verify implements engine.Store.
func (s *Store) Verify(ctx context.Context, report func(problem string)) error {
	return fmt.Errorf("TODO")
}
