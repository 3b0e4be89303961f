package main

import "time"

// cli is the command line. Each command is a struct of flags with a Run method.
type cli struct {
	Store   string        `help:"Directory of the store. All commands except scan need it." placeholder:"DIR"`
	Output  string        `help:"Print a table, a JSON document, or a line of JSON for each row: ${enum}." short:"o" enum:"table,json,jsonl" default:"table"`
	Timeout time.Duration `help:"End after this time, with what was found. 0 = never."`
	Yes     bool          `help:"Change the store. Without it, commands that change something only say what they would do."`

	Status  statusCmd  `cmd:"" help:"Show what is in the store: identity, sizes, oldest week, damage that was met."`
	Lookup  lookupCmd  `cmd:"" help:"Find the claim on an event: in its week, or in all retained weeks."`
	Claims  claimsCmd  `cmd:"" help:"List the claims of a scope in a week."`
	Weeks   weeksCmd   `cmd:"" help:"Count the claims of each week and scope, which reads all of them."`
	Scopes  scopesCmd  `cmd:"" help:"List the scopes, and the weeks in which they have claims."`
	Holds   holdsCmd   `cmd:"" help:"List the holds, which keep weeks from being dropped."`
	Offsets offsetsCmd `cmd:"" help:"List the offsets of a consumer group, or of all."`
	Outbox  struct {
		List outboxListCmd `cmd:"" help:"List the messages that are not published yet, and those that are parked."`
	} `cmd:"" help:"Messages of transactions."`
	Verify  verifyCmd  `cmd:"" help:"Read the whole store and list what is damaged."`
	Backup  backupCmd  `cmd:"" help:"Write a copy of the store to a new directory."`
	Restore restoreCmd `cmd:"" help:"Put a copy of a backup in the place of the store."`
	Forget  forgetCmd  `cmd:"" help:"Remove the claim on an event, so that its next delivery is handled again."`
	Drop    struct {
		Week  dropWeekCmd  `cmd:"" help:"Drop the oldest retained week. Its events are too old from then on."`
		Scope dropScopeCmd `cmd:"" help:"Drop all claims of a scope that is no longer used."`
		Group dropGroupCmd `cmd:"" help:"Drop offsets, holds and bookkeeping of a consumer group that is no longer used."`
	} `cmd:"" help:"Drop data that is no longer needed."`
	Scan scanCmd `cmd:"" help:"Read the last hours of a Kafka topic and report its duplicates. It needs no store and joins no group."`
}
