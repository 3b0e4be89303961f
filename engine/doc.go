// Package engine decides, durably, which caller handles an event.
//
// An event has a scope, an id and a time. For each event of a week that is kept, exactly one caller
// gets the verdict Claimed. Every other caller gets another verdict, such as Duplicate. A verdict
// is returned when it is durable: it stays true after a crash, a power cut and a restart.
//
//	store, err := pebble.Open(dir, pebble.Options{})
//	eng, err := engine.Open(store, engine.Options{RetentionWeeks: 4})
//	defer eng.Close()
//	res, err := eng.TryClaim(ctx, engine.Event{Scope: "billing", ID: id, Time: t})
//	if err == nil && res.Verdict == engine.Claimed {
//		handle()
//	}
//
// TryClaim commits a claim by itself, before the work: if the work fails, the event is not handled
// again. Update runs a transaction that commits claims together with the application's own keys and
// the offsets of consumed records: all of them or none.
//
// # The application's keys
//
// An application keeps state under keys in the same store. Tx.Get, Tx.Put, Tx.Delete and Tx.Scan
// are part of a transaction. Tx.Add adds to a key without reading it, and never conflicts with
// another Add. Engine.Get and Engine.Scan read outside a transaction, and return only durable
// values.
//
// # Stores
//
// A store keeps everything on disk: package engine/pebble or engine/bolt. Package engine/storage
// defines the contract between the engine and a store. The engine encodes records, keeps the
// filters and their journal, and orders all changes:
//
//	callers ──prepare──▶ committer ──batch──▶ applier ──Apply──▶ store
//	   ▲   filter, cache,   decides in order                      │
//	   │   store lookups                                          ▼
//	   └────────────────────── answers ──────── releaser ◀──wait── durable
//
// # Transactions
//
// Transactions are optimistic: each is validated when it commits, and runs again after a conflict.
// Transactions that read keys written by others conflict often if they run in parallel. In a lane
// (Engine.JoinLane, UpdateOptions.Lane) they take turns: each begins when the one before it is applied. A lane only
// schedules: every transaction is validated, with or without a turn, and no verdict waits for a
// turn. While an open transaction has claimed an event, every other caller gets InFlight at once.
//
// # Reading the source
//
// From the bottom up; only tx.go, transactor.go and part.go need each other:
//
//   - event.go, record.go and verdict.go have the input and the answer, claimset.go an event on its
//     way from one to the other.
//   - core.go is what all parts share: the store, the options, and whether the engine works.
//     kept.go and floors.go are the oldest retained weeks, screen.go has the filters, filterbudget.go
//     bounds them, recent.go is the claim cache.
//   - finder.go and neighbours.go find claims, request.go hands requests to the committer.
//   - txrequest.go is what a transaction has done: its claims (txclaims.go), writes (txwrites.go)
//     and reads (reads.go). transactions.go is what open transactions know of one another.
//   - txstatus.go says whether a transaction may go on. On these rest txstate.go and txscan.go,
//     which read and write keys for it, txfinder.go, which finds and takes claims, and txjudge.go,
//     where its verdicts are given; base.go is what a part sees of its transaction.
//   - tx.go, transactor.go and part.go put a transaction together, and run it. Its methods are in
//     tx.go, txclaim.go, txkeys.go, txoffsets.go, produce.go, finish.go and unclaim.go.
//   - decideclaim.go, decidesums.go and decide.go decide; committer.go applies and releases what is
//     decided. snapshot.go and loadfilters.go keep and load the filters.
//   - drop.go, expired.go, dropscope.go and nightly.go are retention; admin.go, browse.go and
//     verify.go are for operators.
//   - engine.go puts the parts together, open.go brings them to where the store was left; claim.go,
//     finish.go and update.go are the calls of an application.
package engine
