package engine

import "github.com/hapax-dev/hapax/weekbucket"

// A DropReport says what was dropped.
type DropReport struct {
	// Oldest is the oldest retained week now.
	Oldest weekbucket.Week
	// Scopes has the new oldest retained weeks of the scopes for which this call raised them.
	Scopes map[string]weekbucket.Week
	// Weeks is the number of weeks by which Oldest was raised, Buckets the number of removed
	// (scope, week) pairs with claims.
	Weeks   int
	Buckets int
	// Behind is the number of expired weeks that the bounds of DropExpired leave to later runs: the
	// engine's, or those of the scope in Options.ScopeRetention that has the most. In an idle store
	// it increases each week (see DropExpired); a very large number means that the clock is ahead.
	Behind int
	// HeldBy is the name of a hold that kept an expired week, "" if there was none.
	HeldBy string
}
