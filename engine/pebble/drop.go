package pebble

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A dropper drops buckets.
//
// Dropping is one range delete for each bucket, all in one synced batch, with a note for the claims
// that are not in tables yet: it costs the same for ten claims and for ten million. The space is
// freed later (Reclaim): Pebble deletes a table that lies wholly in a deleted range without reading
// it, and rewrites one that holds other buckets as well. Pebble's Excise is no faster where tables
// are entirely in a bucket, frees nothing where they are not (it leaves virtual tables), and cannot
// be part of a batch.
type dropper struct {
	core      *core
	identity  *identity
	packedLog *packedLog
	reclaimer *reclaimer
	memtable  *memtable.Memtable
}

func (d *dropper) Drop(buckets []storage.Bucket) error {
	if len(buckets) == 0 {
		return d.core.fault.get()
	}
	if err := d.identity.raiseFormat(); err != nil {
		return err
	}
	spans := spansOf(buckets)
	d.packedLog.ingest.Lock()
	defer d.packedLog.ingest.Unlock()
	p := d.core.db.NewBatch()
	for _, span := range spans {
		must(p.DeleteRange(span.Start, span.End, nil))
	}
	prefixes := d.packedLog.noteDrops(p, spans)
	d.core.recentRuns.Dropping(spans)
	if err := d.core.fault.write(func() error { return d.core.db.Apply(p, pebble.Sync) }); err != nil {
		return fmt.Errorf("hapax: dropping %d buckets: %w", len(buckets), err)
	}
	if !p.Empty() { // Pebble has taken a large batch over, and its number is not known
		d.core.recentRuns.Dropped(spans, uint64(p.SeqNum())+uint64(p.Count()))
	}
	d.memtable.Drop(prefixes)
	d.reclaimer.spans.add(spans)
	return nil
}
