// Package engine decides, durably and exactly once, who may handle an event.
//
// For every event (scope, id, week of its time) one caller in the life of a retained week is told Claimed; everybody
// else is told why not; and what was told is still true after a crash, a power cut and a restart. TryClaim commits a
// claim by itself, before the work; Update makes claims part of a transaction together with the host's own keys and
// the offsets of what it has consumed.
//
// The engine keeps nothing itself: a Store does (packages engine/pebble and engine/bolt). It owns the Store contract,
// the keys (key.go), the records (record.go), the filters and their journal (screen.go, journal.go, snapshot.go), and
// the order in which things happen:
//
//	callers ──prepare──▶ committer ──batch──▶ applier ──Apply──▶ store
//	   ▲   filter, cache,   decides in order                      │
//	   │   store lookups                                          ▼
//	   └────────────────────── answers ──────── releaser ◀──wait── durable
//
// Reading the source: event.go and verdict.go say what goes in and out; claim.go is the way of an own-commit claim,
// committer.go and window.go where it is decided and applied; tx.go, txclaim.go, prefetch.go, transactions.go and
// reservations.go are transactions; weeks.go is retention; open.go is recovery; store.go is the contract.
package engine
