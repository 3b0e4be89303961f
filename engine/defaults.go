package engine

import "time"

// KeepAll is the value of Options.RetentionWeeks with which nothing expires.
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
	defaultMaxOutboxBytes  = 8 << 30
)

const (
	maxRetentionWeeks = 52 * 100

	// maxBatchEvents is the maximum number of events that are judged at once. A longer
	// TryClaimBatch is judged in pieces of this size, one after the other.
	maxBatchEvents = 8192

	weekDuration = 7 * 24 * time.Hour
)
