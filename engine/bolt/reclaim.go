package bolt

import (
	"context"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A reclaimer frees the space of dropped data.
type reclaimer struct{}

// Reclaim returns at once. The next batches reuse the pages of a dropped bucket, but the file never
// shrinks by itself: a Backup is a copy without free pages.
func (reclaimer) Reclaim(context.Context, []storage.Bucket) error { return nil }

// ReclaimState returns at once, for the same reason. The bytes of removed states remain in free
// pages of the file until these are reused.
func (reclaimer) ReclaimState(context.Context, storage.Span) error { return nil }
