// Package hapaxtest runs the routes of a consumer in a test: the real consumer of package
// kafkaadapter and the real relay of package outbox, with an embedded Kafka broker and a store in
// memory. It delivers records once, twice, or with a power failure in between, and checks what
// remains.
//
//	func TestPaymentSentTwice(t *testing.T) {
//		c := hapaxtest.Start(t, route)
//		c.DeliverTwice(payment("p1", "alice", "10"))
//		c.WantInt64("alice", 10)
//	}
//
// No verdict is computed here: the checks read the store, the topics of the broker and the metrics
// of the consumer.
//
// # Time
//
// Consumer.Advance moves the clock of the engine, which decides about windows, leases and retention.
// It moves nothing else: timestamps of records, backoffs, time limits and the due times of messages
// follow the clock of the machine. The engine's clock begins at the time of the machine.
//
// # What it does not show
//
// Each topic has one partition and there is one member, so rebalances do not occur. The store keeps
// what it has synced and nothing more; a real disk may also keep batches that were not synced.
//
// Use this package only in tests: it links the embedded broker.
package hapaxtest
