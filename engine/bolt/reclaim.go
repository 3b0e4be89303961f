package bolt

import (
	"context"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A reclaimer gives back the space of what was dropped.
type reclaimer struct{}

// Reclaim returns at once. The pages of a dropped bucket are used again by the next batches, but
// the file never shrinks by itself: a Backup is a copy without free pages.
func (reclaimer) Reclaim(context.Context, []storage.Bucket) error { return nil }

// ReclaimState returns at once, for the same reason. The bytes of removed states stay in free pages
// of the file until these are used again.
func (reclaimer) ReclaimState(context.Context, storage.Span) error { return nil }
