// Package engine decides, durably and exactly once, who may handle an event.
//
// For every event (scope, id, week of its time) one caller in the life of a retained week gets
// Claimed; everybody else gets why not; and what was told is still true after a crash, a power cut
// and a restart. TryClaim commits a claim by itself, before the work; Update makes claims part of a
// transaction together with the application's own keys and the offsets of what it has consumed.
//
// An application keeps state of its own under keys in the same store. Tx.Get, Tx.Put, Tx.Delete and
// Tx.Scan are part of a transaction; Tx.Add adds to a key without reading it, and never conflicts
// with another Add; Engine.Get and Engine.Scan read outside one, and return only values that would
// survive a power cut.
//
// The engine keeps nothing itself: a store does (packages engine/pebble and engine/bolt; package
// engine/storage is their contract). It owns the records (record.go), the filters and their journal
// (screen.go, journal.go, snapshot.go), and the order in which things happen:
//
//	callers ──prepare──▶ committer ──batch──▶ applier ──Apply──▶ store
//	   ▲   filter, cache,   decides in order                      │
//	   │   store lookups                                          ▼
//	   └────────────────────── answers ──────── releaser ◀──wait── durable
//
// Transactions are optimistic. Those that read what others write lose against one another again and
// again if they run in parallel; a lane (JoinLane, InLane) is a queue in which such transactions
// take turns, each beginning when the one before is applied. A lane only schedules. Every
// transaction is validated when it commits, with or without a turn, and no verdict ever waits for a
// turn: an event that an open transaction holds is InFlight at once.
//
// Reading the source: event.go and verdict.go say what goes in and out; claim.go is the way of an
// own-commit claim, committer.go and window.go where it is decided and applied; tx.go, txclaim.go,
// prefetch.go, transactions.go, reservations.go, lane.go and part.go are transactions; keys.go is
// the application's keys, pages.go, txscan.go and writelog.go are iterating over them, browse.go
// over claims and offsets; lease.go is how a pending claim is finished; weeks.go is retention;
// open.go is recovery.
package engine
