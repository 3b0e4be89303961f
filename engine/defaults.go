package engine

import "time"

// KeepAll is the Options.RetentionWeeks with which nothing expires.
const KeepAll = -1

// The defaults of Options.
const (
	defaultRetentionWeeks  = 4
	defaultAllowedSkew     = 24 * time.Hour
	defaultNightlyAt       = 3 * time.Hour
	defaultMaxIDBytes      = 1 << 10
	defaultMaxWeeksPerRun  = 2
	defaultRecentClaims    = 1 << 16
	defaultExpectedPerWeek = 1 << 20
	defaultMaxFilterBytes  = 512 << 20
	defaultMaxOutboxBytes  = 8 << 30

	// defaultSnapshotEvery is the least number of claims between two snapshots; it increases with
	// the store, because each snapshot writes all filters.
	defaultSnapshotEvery = 1 << 20
	defaultSnapshotRetry = time.Minute // between two attempts to write one

	// defaultTrimAtClose is the maximum number of batches whose journal is removed when the engine
	// closes: some stores need two syncs for a few hundred of them.
	defaultTrimAtClose = 1 << 17
)

const (
	maxRetentionWeeks = 52 * 100

	// maxBatchEvents is the maximum number of events that are judged for one batch of the store. A
	// longer TryClaimBatch is judged in parts of this size, one after the other.
	maxBatchEvents = 8192

	weekDuration = 7 * 24 * time.Hour
)
