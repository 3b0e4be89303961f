package engine

import "time"

// Caps on what an event may carry. They bound keys, memory and the size of a batch.
const (
	DefaultMaxIDBytes = 1024 // Options.MaxIDBytes = 0
	LimitIDBytes      = 16 << 10
	MaxArrivalWindow  = 53 * weekDuration // Event.Window of an event without a time
	MaxLease          = 24 * time.Hour

	MaxFingerprintBytes = 64
	MaxDataBytes        = 256 << 10 // of a claim's result
	MaxScopeBytes       = 255
	MaxTopicBytes       = 255

	weekDuration = 7 * 24 * time.Hour
)

// MaxBatchEvents is the most events that are judged for one batch of the store. A longer
// TryClaimBatch is judged in parts of this size, one after the other.
const MaxBatchEvents = 8192

// Caps on one transaction, which bound its batch and its memory. Reaching one is ErrLimit.
const (
	MaxHostKeyBytes   = 4 << 10
	MaxHostValueBytes = 4 << 20
	MaxTxBytes        = 32 << 20
	MaxTxReadBytes    = 32 << 20 // of the keys read from the store, each counted with 64 bytes more
	MaxTxClaims       = 1 << 16
	MaxTxScans        = 1 << 16
)

// The defaults of Options, and limits.
const (
	DefaultRetentionWeeks  = 4
	KeepAll                = -1
	DefaultAllowedSkew     = 24 * time.Hour
	MaxAllowedSkew         = 10 * 365 * 24 * time.Hour
	DefaultMaxWeeksPerRun  = 2
	DefaultRecentClaims    = 1 << 16
	DefaultExpectedPerWeek = 1 << 20
	DefaultMaxFilterBytes  = 512 << 20

	maxRetentionWeeks = 52 * 100

	// defaultSnapshotEvery is the least number of claims between two snapshots; it rises with the
	// store, because each one writes all filters.
	defaultSnapshotEvery = 1 << 20
	defaultSnapshotRetry = time.Minute // between two attempts to write one
)
