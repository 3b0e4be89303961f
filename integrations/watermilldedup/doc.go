// Package watermilldedup deduplicates the messages of a Watermill router with the engine's claims.
//
// [New] returns a middleware for handlers. A message is claimed under a lease, and the claim is
// finished when the handler has succeeded:
//
//	dedup, err := watermilldedup.New(eng, watermilldedup.Options{Key: watermilldedup.UUID})
//	router.AddMiddleware(dedup)
//
// # What happens to a message
//
//	claimed           the handler runs; its messages are returned, or its error
//	duplicate         acknowledged without calling the handler; the messages of the first run are returned again
//	being handled     nacked after Options.NackDelay, without an error, so that it is delivered again
//	handler failed    its error is returned, and the claim is released: the next delivery is handled
//	process died      the lease expires, and exactly one later delivery is handled
//	store failed      its error is returned; with Options.FailOpen the handler runs without a claim
//
// Each handler of a router has claims of its own, unless Options.Shared is set. The claims are
// durable before the handler's success is acknowledged, and last for Options.Window.
//
// After a failure, the UUID and the payload of the message are again those that were delivered.
//
// # Order of the middlewares
//
// Middlewares that were added before this one are outside of it. Add them in this order:
//
//	Recoverer, CircuitBreaker, PoisonQueue, Retry, dedup, InstantAck, Timeout, the handler's own
//
// Other orders lose nothing:
//
//	PoisonQueue or CircuitBreaker outside    a message that is being handled is no failure for them
//	PoisonQueue inside    the claim of a message that it publishes is released, so that the message is handled when it is requeued
//	InstantAck outside    the message is claimed and handled although its context has ended, and waits while another delivery is being handled
//
// But if the store fails, a message that was acknowledged outside is lost, unless Options.FailOpen is
// set, and a plain PoisonQueue gets every message: give [HandlerFailed] to
// middleware.PoisonQueueWithFilter. A middleware inside that ignores errors, such as IgnoreErrors,
// makes a failed message a handled one. The middleware recognises PoisonQueue by the metadata
// subscriber_poisoned, which handlers do not see, and not other ones like it: keep those outside.
//
// # Messages that a handler returns
//
// The router publishes what a handler returns after all middlewares have returned, and nacks the
// message if that fails. So the messages are stored with the claim, up to limits.DataBytes, and a
// duplicate returns them again, with the same UUIDs, metadata and payloads: they are published at
// least once, and their consumers identify copies by the UUID. If they are larger, the handler has
// failed.
//
// A handler that publishes messages itself publishes them again when it runs again. Put effects in
// the same store that must happen once into a transaction of the engine with tx.TryClaim.
//
// # The Deduplicator of Watermill
//
// [NewRepository] returns an ExpiringKeyRepository for Watermill's middleware.Deduplicator and its
// PublisherDecorator. These mark a key before the message is handled or published: if its handler
// fails, the message is lost when it is delivered again. Use the repository where this is
// acceptable and keys must survive a restart.
//
// # Versions
//
// The package is a module of its own, so that other packages do not depend on Watermill. In this
// tree it uses the module of the root (replace in go.mod). At a release, that line is removed, the
// corresponding version of github.com/hapax-dev/hapax is required, and the module is then tagged
// integrations/watermilldedup/vX.Y.Z.
package watermilldedup
