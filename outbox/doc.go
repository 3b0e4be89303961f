// Package outbox publishes the messages of an engine's transactions to Kafka.
//
// A transaction writes an outgoing message with [engine.Tx.Produce], in the same batch of the store
// as its claims, its state and its offsets. A [Relay] reads the messages from the store and
// publishes them:
//
//	relay, err := outbox.New(eng, outbox.Options{Client: []kgo.Opt{kgo.SeedBrokers(brokers...)}})
//	go relay.Run(ctx)
//
// # Order
//
// Messages are published by due time. Messages of one ordering key (engine.Message.OrderingKey;
// without one the topic and the key) are published in the order in which their transactions
// committed; a message that is due later is ordered by its due time. A message that fails holds
// back the later ones of its ordering key until it is published or parked. One message of each
// ordering key is in flight at a time, so that no message overtakes one that fails. For a hot key,
// this means one message in each round trip to the broker, except with the exactly-once relay. At
// most a tenth of the messages of a batch have the same key, and a batch starts further messages of
// a key for a quarter of a second only, so that other keys do not wait for a hot one. Up to 16,384
// messages of hot keys wait in memory meanwhile.
//
// A message larger than 1,000,012 bytes is published if its topic accepts it. The relay then reads
// max.message.bytes of the topic, for which it needs the permission DescribeConfigs.
//
// # Delivery
//
// A message is removed from the store after the broker has acknowledged it. So it is published at
// least once, and twice if the process dies in between. Its id and its event time are in the
// headers [correlation.MessageID] and [correlation.MessageTime], the same on each attempt and after
// a redrive. A consumer that uses the engine (package kafkaadapter) reads these headers before all
// others, claims by that id and handles the message once, whatever ids the application has copied
// into its headers. Headers of these two names among those of the application are left out.
//
// The event time is engine.Message.Time; without one, the time of Produce or the due time, whichever
// is later. The timestamp of the record is the time of its publication, from which Kafka counts the
// retention of the topic, unless engine.Message.Time is set.
//
// With Options.ExactlyOnce the relay publishes each batch in a Kafka transaction, together with a
// record in a progress topic that lists the messages of the batch. After the transaction it removes
// them from the store, and only then begins the next one. A relay that starts ends the transaction
// that an earlier one has left open, reads the committed progress of its store and removes what it
// lists, in parts: a later attempt continues where the last one ended. Readers of committed records
// then see each message once. Records of progress are authenticated with a secret of the store and
// with the producer id; those that others have written, or copied, are ignored. The transactional
// id contains the store's uuid, so that two processes that run copies of one store fence each
// other. A restored backup publishes all messages again that were published since it was made,
// unless the progress topic still has the records that list them.
//
// # Failures
//
// A message that could not be published is retried after an exponential backoff with jitter. The
// attempts, the time of the next one and the last error are kept in the store. A message that the
// broker or the client rejects Retry.Attempts times is parked: see [Relay.Parked], [Relay.Redrive]
// and [Relay.Drop]. It then no longer holds back others. Attempts that fail because the broker
// cannot be reached never park a message.
//
// A partition that does not answer for a second, while others do, is held: its messages are not
// sent until it answers, and no batch waits for it. What the plain relay has sent stays with the
// client, which publishes it as soon as it can. If some of these messages have no key, so that they
// may go to another partition, the relay closes its client after Batch.Time and sends all of them
// again: those without a key to other partitions, and the others when the partition is tried again.
// A message that the broker had received but not acknowledged is then published twice. The
// exactly-once relay aborts the transaction and publishes the other messages without those of the
// partition. It tries these again after four seconds, and after longer times if the partition is
// still silent. Each trial delays the other messages, for a second at first and for Batch.Time at
// most. While it holds a partition, it also sends one message at a time of an ordering key whose
// messages go to several partitions.
//
// At most half of a batch are retries if there are enough new messages. A Kafka transaction fails
// as a whole. So the exactly-once relay puts retries and new messages in separate transactions, in
// turn, and adds no new messages when it publishes the rest of a failed transaction. At most
// 131,072 ordering keys are held back by a failed message; beyond that, nothing new is published
// until some of their messages are published or parked.
//
// While no message is acknowledged, a batch starts only when a backoff has ended or
// Options.Interval has passed, and takes at most ten new messages. So an outage costs few attempts.
// The exactly-once relay takes new messages only when Options.Interval has passed. If the progress
// topic cannot be read, it retries with a separate backoff.
//
// # One relay at a time
//
// A store belongs to one process. Relays of one process on the same engine share a lease in the
// store: a key with a random owner and a time to live, which is taken, renewed and released in
// transactions. Every write of a relay commits only if the relay has the lease. The lease is
// renewed when TTL - Margin has passed. No send starts that could outlast the lease, and a batch
// stops at once when a renewal fails. A relay that was paused for longer than its lease, by the
// machine or a debugger, can publish the messages in flight twice, at most Batch.Entries of them.
// If there are several processes, each relay serves the store of its process. A relay without work
// releases the lease and writes nothing. The lease of a process that has ended is taken at once.
//
// # Metrics
//
//	metric                              kind     figure
//	dedup_outbox_pending_messages       gauge    messages that are neither published nor parked
//	dedup_outbox_due_messages           gauge    of these, those whose due time has come
//	dedup_outbox_oldest_due_age_seconds gauge    time since the oldest of these was due
//	dedup_outbox_parked_messages        gauge    messages that are parked
//	dedup_outbox_size_bytes             gauge    size of all these messages, as engine.Options.MaxOutboxBytes counts it
//	dedup_outbox_max_size_bytes         gauge    engine.Options.MaxOutboxBytes
//	dedup_outbox_held_partitions        gauge    partitions that do not answer, while others do
//	dedup_outbox_connection             gauge    by state, 1 for that of the connection to Kafka: never_connected, authentication_failed, connected, lost; all 0 before the first attempt
//	dedup_outbox_sent_total             counter  messages that the broker has acknowledged
//	dedup_outbox_failed_total           counter  failed attempts to publish a message
//	dedup_outbox_lease_lost_total       counter  leases that another relay took while this one had them
//
// The gauges are those of the store, read at each scrape. The age includes messages in backoff if
// the relay has the lease. Counters are those of the relay; with ExactlyOnce, a message that an
// earlier relay has published counts as sent when it is found in the progress topic.
package outbox
