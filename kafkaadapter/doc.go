// Package kafkaadapter consumes Kafka topics as a member of a consumer group and handles each event
// once. It polls records, claims their events in an engine, runs the application's handler, and
// commits the claims and the next offset in one batch of the engine's store.
//
//	consumer, err := kafkaadapter.New(eng, kafkaadapter.Options{
//		Group:  "billing",
//		Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:9092")},
//		Routes: []kafkaadapter.Route{{
//			Topics:      []string{"payments"},
//			Mode:        kafkaadapter.Transactional{Handle: pay, MaxAttempts: 5},
//			DeadLetters: &deadletter.Options{},
//		}},
//	})
//	err = consumer.Run(ctx) // until ctx ends
//
// docs/kafka.md is the guide: ids, dead letters, several consumers, TLS, tests of handlers.
// docs/failures.md describes each failure, docs/operations.md each reason for which a partition
// stops, and docs/architecture.md the states of a partition and the files of this package.
//
// # Guarantees
//
// Each route has a mode. New returns an error if a route lacks an option that its mode requires.
//
// AtMostOnce: the claims of a batch and the next offset commit before the handlers run. No claimed
// event is handled twice. If a handler fails, panics, or is cut off, its event is lost; lost events
// are counted and logged. If the process dies, up to one batch of each partition
// (Options.MaxBatch) is lost without being counted. When an assignment ends normally,
// claims whose handlers have not started are withdrawn.
//
// Transactional: the handlers of a batch run inside one transaction, each under a savepoint. The
// claims, the handlers' writes through tx, the next offset and any dead letters commit together or
// not at all. Each event takes effect once in the store, through crashes and rebalances; its
// handler may run more often. If a handler fails, only its own writes roll back, and the records
// before it in the batch commit. It runs again after a backoff (Options.MaxBackoff), up to
// Transactional.MaxAttempts times; then its record becomes a dead letter. Attempts are kept in the
// store, and a process that dies in a handler counts as an attempt. With Transactional.HandleBatch,
// one call handles all claimed records of a batch; if it fails, FailedAt names the failing record,
// or halving the batch finds it.
//
// Route.Concurrency lets the handlers of one partition run in parallel, in order for each key, with
// the same promises.
//
// If the store fails, Run returns the error, and everything acknowledged is in the store. With
// Options.ReopenStore, only for AtMostOnce, the consumer continues without claims until that function
// has opened the store: copies are handled again, and event times are not checked.
//
// # Limits
//
//   - Effects outside the store happen as often as the handler runs.
//   - Only committed records are read (read_committed).
//   - A store belongs to one process. Members of a group that exchange partitions must be consumers
//     of one process that share an engine. A partition that moves to a member with a different
//     store stops there (ErrForeignStore).
//   - Order is kept within a partition or, with Route.Concurrency, for each key. A record in
//     backoff delays the records after it.
//   - Dead letters are published at least once.
//   - A record that a policy for TooOld, TooNew or Failed passes to the handler without a claim is handled
//     each time it is read.
//
// # Offsets
//
// Reading starts at the store's offset. Kafka's committed offset follows it, for lag tools, with the
// store's identity as metadata. The adapter compares the store's offset with the log and with the
// group's commit when a partition is assigned, when a fetch fails, and where the leader epoch rises.
// If they do not agree, the partition stops with a PositionError; the documentation of its kinds
// lists their recovery policies. Options.Recovery chooses a policy for every such stop;
// Consumer.AdoptOffset applies one once, to one partition. Without a policy, nothing is skipped or
// read again. No policy removes claims: a claimed event is still a duplicate.
//
// A stopped partition does not end Run, and other partitions continue: see Consumer.Stopped,
// OnStop and the metric dedup_kafka_partition_stopped. A stop with a PositionError lasts until
// the assignment ends; most others are retried after a backoff.
//
// Each partition has a hold in the engine, named kafka/<group>/<topic>/<partition>, that keeps the
// weeks that its unread records need. Its time is the lowest event time of the last batch minus
// seven days, by which copies may be late; when the partition has caught up, it is the current time minus
// seven days. The hold remains when the consumer ends. The application must release the holds
// of partitions that will not be read again (Engine.Holds, Engine.ReleaseHold).
//
// # Rebalances and shutdown
//
// When a partition is revoked or Run ends, its running handler may continue for at most
// Options.DrainTimeout. Then the handler's context ends and the partition is fenced: the owner of a
// partition is a key in the store that each batch reads, so no batch of an earlier owner commits.
// Lost partitions are fenced at once. Handlers should watch their context.
//
// # Reserved names
//
// Application keys that begin with KeyPrefix belong to the adapter: owners of partitions, attempts and
// dead letters. While a consumer runs, the offsets of its group and the holds of its partitions are
// its own, and so is the claim on the event that a handler is called for. Transactions refuse to
// change them, with an engine.ArgumentError. Names of holds that begin with kafka/ and headers that
// begin with hapax_dlt_ are also reserved.
//
// # Metrics
//
// These metrics are registered with Options.Telemetry.Registerer from New until Run returns. In
// addition to the labels listed, all have the labels group and member:
// the id of Static, the index of Pinned, empty for a dynamic member. No label contains an id or a key.
//
//	metric                               kind       labels                    figure
//	dedup_kafka_records_total            counter    topic, outcome            records of committed batches, by verdict; AtMostOnce: counted when the handlers have begun, without withdrawn claims
//	dedup_kafka_unclaimed_total          counter    topic                     records handled without a claim, by policy
//	dedup_kafka_unprotected_total        counter    topic                     records handled without a claim because the store was unavailable (Options.ReopenStore)
//	dedup_kafka_ids_total                counter    topic, rule               ids, by the rule that found them
//	dedup_kafka_times_total              counter    topic, rule               event times, by the rule that found them
//	dedup_kafka_unreadable_times_total   counter    topic                     times ignored because they could not be parsed
//	dedup_kafka_failed_attempts_total    counter    topic                     failed attempts of handlers
//	dedup_kafka_reopened_total           counter    topic                     replays of dead letters that were handled
//	dedup_kafka_refused_replays_total    counter    topic, reason             records with the headers of a dead letter that are not accepted, by deadletter.Refusal
//	dedup_kafka_dead_letters_total       counter    topic, reason             dead letters acknowledged by the broker
//	dedup_kafka_skipped_total            counter    topic, reason             records acknowledged without handling, by policy
//	dedup_kafka_lost_total               counter    topic                     AtMostOnce: claimed events whose handler failed or was cut off
//	dedup_kafka_fenced_total             counter    topic                     batches dropped because the partition had another owner
//	dedup_kafka_paused_total             counter    topic                     pauses of fetching because a worker had enough queued records
//	dedup_kafka_stops_total              counter    topic, reason             stops of a partition
//	dedup_kafka_fetch_errors_total       counter    topic                     errors returned by polls of the client
//	dedup_kafka_batch_records            histogram  topic                     records in one batch of the store
//	dedup_kafka_handler_seconds          histogram  topic                     time in the handlers of a batch
//	dedup_kafka_commit_seconds           histogram  topic                     time to claim and commit a batch, without handlers
//	dedup_kafka_lag_records              gauge      topic, partition          from the store's offset to the log's end; AtMostOnce: from the first record whose handler has not begun
//	dedup_kafka_stable_lag_records       gauge      topic, partition          from the store's offset to the last stable offset: readable records
//	dedup_kafka_hold_age_seconds         gauge      topic, partition          age of the partition's hold
//	dedup_kafka_batch_age_seconds        gauge      topic, partition          age of the current batch; grows while a handler hangs
//	dedup_kafka_unprotected              gauge      -                         1 while the store is unavailable and records are handled without claims
//	dedup_kafka_connection               gauge      state                     1 for the present state of the connection: never_connected, authentication_failed, connected, lost; 0 for the others
//	dedup_kafka_ready                    gauge      -                         1 while Ready returns nil
//	dedup_kafka_buffered_bytes           gauge      -                         memory of fetched records, at most about MaxBufferedBytes
//	dedup_kafka_partition_paused         gauge      topic, partition          1 for each partition that the application has paused
//	dedup_kafka_partition_stopped        gauge      topic, partition, reason  1 for each partition that is assigned but not read
//
// # Logs
//
// Options.Telemetry.Logger gets these messages. Error: a partition stops, a dead letter still
// cannot be published, claimed events were lost, a handler was cut off, a topic does not exist, a
// dead-letter topic cannot be written, or the store has failed with Options.ReopenStore. Warn: failed
// attempts, dead letters, replays that are not accepted, records rejected or handled without a
// claim, applied recovery policies, lost partitions, errors that the client retries itself, and once a
// minute why Ready returns an error.
// Info: a partition continues after a stop. Debug: duplicates. To log messages of the client, set
// kgo.WithLogger in Options.Client.
//
// A line is one line: texts of errors are cut to 2 KiB and escaped. Options.Telemetry.IDs says how
// ids of events are shown.
//
// The error of a handler, of Decode and of identify.Rules.Payload is read once, when it is returned.
// What the application does to it later changes nothing; errors.Is and errors.As find what it
// wrapped, in a StopError too.
package kafkaadapter
