// Package listener makes the listener of a queue idempotent: a message that is delivered again is
// acknowledged and not handled again.
//
// [Wrap] takes the function that handles a message and returns one with the same signature, for any
// queue that acknowledges a message for which nil is returned and delivers it again after an error
// (JMS, AMQP, SQS, Redis streams, NATS, and the like):
//
//	handle, err := listener.Wrap(eng, allocate, listener.Options[Prize]{
//		Queue: "prizes",
//		ID:    func(p Prize) string { return p.CorrelationID },
//	})
//
// The producer sets the id once for each logical send: package correlation has a helper. Messages
// with one id are the same message for all listeners of a scope, whichever queue they come from.
//
// # What happens to a message
//
//	claimed           the handler runs, and its error is returned
//	duplicate         nil is returned without calling the handler; it is logged at level debug
//	being handled     an InProgressError with the time until which to wait; the message is neither acknowledged nor handled
//	store failed      its error; with Options.FailOpen the handler runs without a claim, also if the store stalls
//	another message   ErrMismatch: it has the id of a message with a different Options.Fingerprint
//	cannot be judged  an error, with FailOpen too: the message has no id, or one that is too long
//
// The claim on a message is pending under a lease while the handler runs, and the lease is renewed
// as often as needed. It is done, durably, when the handler has returned nil, and released when the
// handler has returned an error or panicked, so that the next delivery is handled. If the process
// dies, the lease expires, and exactly one later delivery takes the claim over. So a message is
// handled at least once. It is handled more than once only if a handler has done its work, and the
// process dies or the store fails before the claim is done, or if the clock jumps (below). If its effects must not be repeated,
// put them into a transaction of the engine (engine.Tx), together with the claim.
//
// With Options.AtMostOnce, the claim is done before the handler runs, and remains in any case: this
// is the behaviour of SETNX with a time to live.
//
// [WrapResult] stores a result of the handler with the claim, and returns it for each duplicate.
//
// # Windows
//
// A claim lasts for Options.Window from its first sighting, by the clock of the engine, also across
// Monday 00:00. While a handler holds the lease, it lasts longer. After that a message with the
// same id is handled again, by exactly one of the listeners that receive it. Choose a window longer
// than the time after which the queue delivers a message for the last time, or set Options.Sent: a
// copy that was sent within the window of the first message is then a duplicate however late it
// arrives.
//
// Windows and leases follow the clock of the engine. If it jumps ahead by more than the lease, another
// listener can take over a message that is still handled. If it is set back by more than a week,
// messages that were handled in between are not recognised.
//
// # Metrics
//
// With a Registerer in Options.Telemetry: dedup_listener_messages_total{consumer_scope_id, queue, outcome}, where
// outcome is
//
//	handled      the handler returned nil, and its claim is done
//	failed       the handler returned an error or panicked
//	duplicate    acknowledged without calling the handler
//	in_progress  left to a later delivery: another listener is handling it
//	refused      cannot be judged, or is another message with the same id
//	store_error  an error of the store was returned
//	fail_open    handled without a claim, or acknowledged without finishing its claim, because the store failed
//	lease_lost   handled, but another listener has taken the claim over in the meantime
//
// and dedup_listener_oldest_wait_seconds{consumer_scope_id, queue, waits_for}: how long a delivery that has not
// returned has waited for the "store" or the "handler", at most; 0 if there is none.
package listener
