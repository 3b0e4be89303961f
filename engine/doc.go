// Package engine decides, durably, which caller handles an event.
//
// An event has a scope, an id and a time. The scope is the logical consumer, and the time is the
// producer's. For each event of a retained week, one caller gets the verdict Claimed. As long as
// that claim is valid, every other caller gets another verdict, such as Duplicate. A verdict is
// returned when it is durable: it holds after a crash, a power cut and a restart.
//
//	store, err := pebble.Open(dir, pebble.Options{})
//	eng, err := engine.Open(store, engine.Options{RetentionWeeks: 4})
//	defer eng.Close()
//	res, err := eng.TryClaim(ctx, engine.Event{
//		Scope:  "billing",
//		ID:     id,
//		Time:   t,
//		Origin: engine.Origin{Topic: "payments"},
//	})
//	if err == nil && res.Verdict == engine.Claimed {
//		handle()
//	}
//
// A process opens one engine for each store and shares it: all methods are safe for concurrent use.
// Package kafkaadapter consumes Kafka with an engine, package idempotency handles HTTP requests,
// and package listener handles the messages of any queue. An application that uses one of these
// packages needs little of this one.
//
// # Two modes
//
// At most once: Engine.TryClaim and TryClaimBatch commit claims before the work. If the work fails,
// the event is not handled again.
//
// Transactional: Engine.Update runs a closure in a transaction. It commits claims, the
// application's own keys, outgoing messages and the offsets of consumed records, all or none of
// them. If the work fails, the claim rolls back, and the event can be handled again.
//
//	err := eng.Update(ctx, func(tx *engine.Tx) error {
//		res, err := tx.TryClaim(event)
//		if err != nil || res.Verdict != engine.Claimed {
//			return err
//		}
//		return tx.Add([]byte("balance/alice"), 15)
//	}, engine.Retries(3))
//
// With Event.Lease a claim is pending until Engine.Finish, or Tx.Finish, stores a result with it,
// which duplicates then get.
//
// # The application's keys
//
// An application keeps state under keys in the same store. Tx.Get, Tx.Put, Tx.Delete and Tx.Scan
// are part of a transaction. Tx.Add adds to a key without reading it, and never conflicts with
// another Add. Engine.Get and Engine.Scan read outside a transaction, and return only durable
// values. Package outbox publishes the messages of Tx.Produce.
//
// # Transactions
//
// Transactions are optimistic: each is validated when it commits, and fails with ErrConflict if
// another one has written what it read. UpdateOptions.Retries runs it again. Parallel transactions
// that read keys written by others conflict often. In a lane (driver.JoinLane) they take turns:
// each starts when the previous one is applied. A lane only schedules: every transaction is
// validated, with or without a turn, and no verdict waits for a turn. While an open transaction has
// claimed an event, every other caller gets InFlight at once. Package driver also runs parts of a
// transaction in parallel.
//
// # Retention
//
// Claims expire by the week of their event (Options.RetentionWeeks). The engine drops expired weeks
// each night (Options.Nightly), or when Retention.DropExpired is called; their events are TooOld
// from then on. A hold (Engine.SetHold) keeps weeks that are still needed.
//
// # Errors
//
// An EventError reports a rejected event, an ArgumentError another rejected argument; nothing was
// written. After ErrStopped the engine gives no more verdicts: the store has failed and must be
// opened again. A storage.DamageError concerns only events whose claims may be in a damaged part of
// the store. docs/troubleshooting.md lists each error with its cause and remedy.
//
// # Stores
//
// A store keeps everything on disk; packages engine/pebble and engine/bolt are stores. Package
// engine/storage defines the contract between the engine and a store. The engine encodes records,
// keeps the filters and their journal, and orders all changes:
//
//	callers ──prepare──▶ committer ──batch──▶ applier ──Apply──▶ store
//	   ▲   filter, cache,   decides in order                      │
//	   │   store lookups                                          ▼
//	   └────────────────────── answers ──────── releaser ◀──wait── durable
//
// One goroutine, the committer, decides in order. The applier hands one batch at a time to the
// store while the next one is decided. The releaser returns the answers in the same order, each
// when its batch is durable. No lock is held during I/O or while a closure runs.
// docs/architecture.md suggests an order for reading the source.
package engine
