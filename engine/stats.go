package engine

import (
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Stats has counters since the engine was opened, and its current sizes.
type Stats struct {
	// Verdicts counts the verdicts that hold: those of at-most-once claims, and those of committed
	// transactions, except for verdicts rolled back to a savepoint.
	Verdicts map[Verdict]uint64
	// Attempts counts all verdicts, including rolled back ones. The verdicts of a transaction are
	// counted when it ends.
	Attempts map[Verdict]uint64
	// Withdrawn counts the claims that driver.Unclaim has withdrawn. Verdicts also counts these as
	// Claimed, and again when they are claimed again.
	Withdrawn uint64

	// AtRisk is the number of events whose callers have left TryClaim or TryClaimBatch, because
	// their contexts ended, and whose claims may not be withdrawn yet. After a crash now, these
	// claims would remain and the events would not be handled. It falls to 0 when the store makes
	// progress.
	AtRisk uint64

	// FilterNegatives counts events that the filter alone showed to be new; FilterFalsePositives
	// those that the filter might contain and the store did not.
	FilterNegatives, FilterFalsePositives uint64
	// FilterBytes is the memory of all filters.
	FilterBytes uint64
	// FilterSource says where the filters came from when the engine was opened: "snapshot+journal"
	// for a snapshot and the journal of the batches after it, "journal" for the journal of all
	// batches because there was no snapshot yet, "scan" for a scan of all claims in the background.
	FilterSource string
	// FiltersSaturated counts the weeks whose filter is full and may not grow (MaxFilterBytes): new
	// events of these weeks read the store more and more often. FiltersEvicted counts the weeks
	// whose filter was evicted for those of later weeks: all events of these weeks read the store,
	// and new ones count as FilterFalsePositives.
	FiltersSaturated, FiltersEvicted int
	// FilterRebuilding says that every event reads the store, because the filters are not loaded
	// yet, or cannot be rebuilt before damage is dropped (Store.Damaged). FilterRebuilt counts the
	// claims that the rebuild has read so far.
	FilterRebuilding bool
	FilterRebuilt    uint64

	// CacheHits counts look-ups that the claim cache answered; StoreReads counts look-ups in the
	// store.
	CacheHits, StoreReads uint64

	// SnapshotFailures counts snapshots of the filters that could not be written, for example
	// because the disk is full. They are retried at most once a minute, and by Close. Until one
	// succeeds, the store keeps more of its journal and the next open takes longer. LastSnapshotErr
	// is the error of the last snapshot, nil if it was written.
	SnapshotFailures uint64
	LastSnapshotErr  error

	// OutboxBytes is the size of the messages in the outbox, MaxOutboxBytes the value of the
	// option.
	OutboxBytes, MaxOutboxBytes uint64

	OpenTransactions int
	Holds            int
	Names            int // distinct scopes and topics of retained weeks; limits.Names is the maximum
	Oldest           weekbucket.Week
	Store            storage.Usage
}

// Stats returns counters and sizes. It reads the store's sizes and does not delay the judging of
// events. Even if it returns an error, for example after Close, all fields except Store and
// OutboxBytes are valid.
func (e *Engine) Stats() (Stats, error) {
	s := stats(e)
	if err := e.core.enter(); err != nil {
		return s, err
	}
	defer e.core.leave()
	if err := e.transactor.outbox.loadRemoved(e.core.store); err != nil {
		return s, e.core.stop(err)
	}
	s.OutboxBytes = e.transactor.outbox.size()
	var err error
	s.Store, err = e.core.store.Usage()
	return s, err
}

func stats(e *Engine) Stats {
	size, snaps := e.finder.filters.Size(), e.snaps.Status()
	return Stats{
		Verdicts:             e.core.counters.verdicts.load(),
		Attempts:             e.core.counters.attempts.load(),
		Withdrawn:            e.core.counters.withdrawn.Load(),
		AtRisk:               uint64(e.core.left.atRisk.Load()),
		FilterNegatives:      e.core.counters.filterNegatives.Load(),
		FilterFalsePositives: e.core.counters.falsePositives.Load(),
		FilterBytes:          size.Bytes,
		FiltersSaturated:     size.Saturated,
		FiltersEvicted:       size.Evicted,
		FilterSource:         snaps.Source,
		FilterRebuilding:     !e.finder.filters.Trusted(),
		FilterRebuilt:        size.Rebuilt,
		CacheHits:            e.core.counters.cacheHits.Load(),
		StoreReads:           e.core.counters.storeReads.Load(),
		MaxOutboxBytes:       e.core.opt.MaxOutboxBytes,
		OpenTransactions:     e.transactor.history.Open(),
		Holds:                e.holds.count(),
		Names:                e.finder.names.Count(),
		Oldest:               e.Retention().OldestWeek(),
		SnapshotFailures:     snaps.Failed,
		LastSnapshotErr:      snaps.LastErr,
	}
}
