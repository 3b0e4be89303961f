// Package kafkaadapter consumes Kafka topics in a consumer group and handles each event once.
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
// A Consumer finds the id of the event in each record (package identify) and claims it in an engine. If
// the claim exists, the record is a duplicate and is skipped; otherwise the handler runs. The claims of a
// batch of records and the next offset of their partition commit in one transaction of the engine's store,
// so that neither is ever without the other.
//
// docs/kafka.md is the guide: ids, dead letters, several consumers, TLS, tests of handlers.
// docs/failures.md describes each failure, docs/operations.md each reason for which a partition stops.
//
// # Modes
//
// The Mode of a route says what happens if a handler fails.
//
// AtMostOnce: the claims and the offset commit before the handlers run. No claimed event is handled twice. If a
// handler fails, panics or is cut off, its event is lost; lost events are counted and logged. If the
// process dies, up to one batch of each partition (Options.MaxBatch) is lost without being counted.
//
// Transactional: the handlers run inside the transaction. Their writes through tx, the claims, the offset
// and dead letters commit together or not at all, so each event takes effect once in the store, through
// crashes and rebalances. The handler itself may run more often. If it fails, only its own writes roll
// back. It runs again after a backoff, up to Transactional.MaxAttempts times, and a process that dies in it
// counts as an attempt; then the record becomes a dead letter. With Transactional.HandleBatch, one call
// handles all records of a batch.
//
// In both modes, Route.Concurrency lets the handlers of one partition run in parallel, in order for each
// key.
//
// # Limits
//
//   - Effects outside the store, such as calls of other services, happen as often as the handler runs.
//   - Only committed records are read (read_committed).
//   - A store belongs to one process. Members of a group that exchange partitions must be consumers of
//     one process that share an engine: a partition that moves to another store stops
//     (ErrForeignStore).
//   - Order is kept within a partition or, with Route.Concurrency, for each key. A record in backoff
//     delays the records after it.
//   - Dead letters are published at least once.
//   - A record that Route.Policies passes to the handler without a claim is handled each time it is read.
//
// # Where a partition is read
//
// Reading starts at the store's offset. Kafka's committed offset follows it, for lag tools, with the
// store's identity as metadata. When a partition is assigned, when a fetch fails, and where the leader
// epoch rises, the store's offset is compared with the log and with the group's commit. If they disagree,
// nothing is skipped or read again: the partition stops with a PositionError. The error of its kind, such as
// ErrKafkaAhead, names the policies that resolve it. Options.Recovery chooses a policy for every such stop,
// Consumer.AdoptOffset applies one once to one partition. No policy removes claims: a claimed event is
// still a duplicate.
//
// A stopped partition does not end Run, and other partitions continue: see Consumer.Stopped,
// Options.OnStop and the metric dedup_kafka_partition_stopped. A stop with a PositionError lasts until the
// assignment ends; most others are retried after a backoff.
//
// # Rebalances and the end
//
// When a partition is revoked or Run ends, its running handler may continue for Options.DrainTimeout. Then
// the handler's context ends and the partition is fenced: each batch reads the owner of its partition in
// the store, so no batch of an earlier owner commits. Lost partitions are fenced at once. Handlers should
// watch their context. With AtMostOnce, claims whose handlers have not begun are withdrawn.
//
// # A store that fails
//
// Run returns the error, and everything acknowledged is in the store. With Options.ReopenStore, which is
// for AtMostOnce only, the consumer continues without claims until that function has opened the store:
// copies are then handled again, and event times are not checked.
//
// # Retention
//
// Each partition has a hold in the engine, named kafka/<group>/<topic>/<partition>, that keeps the weeks
// that its unread records need: those from seven days before the lowest event time of the last batch, or,
// if the partition has caught up, from seven days ago. The hold remains when the consumer ends. Release the
// holds of partitions that will not be read again (Engine.ReleaseHold, DropGroup).
//
// # Reserved names
//
// Keys that begin with KeyPrefix, names of holds that begin with kafka/ and headers that begin with
// hapax_dlt_ belong to this package. While a consumer runs, so do the offsets of its group, the holds of its
// partitions and the claim on the event that a handler is called for: other transactions that change them
// get an engine.ArgumentError.
//
// # Logs
//
// Options.Telemetry.Logger gets these messages:
//
//   - Error: a partition stops, a dead letter cannot be published, claimed events were lost, a handler was
//     cut off, a topic does not exist, a dead-letter topic cannot be written, or the store has failed.
//   - Warn: failed attempts, dead letters, replays that are not accepted, records rejected or handled
//     without a claim, applied recovery policies, lost partitions, errors that the client retries, and once
//     a minute why Ready returns an error.
//   - Info: a partition continues after a stop.
//   - Debug: duplicates.
//
// Texts of errors are escaped and cut to 2 KiB. Options.Telemetry.IDs says how ids of events are shown. For
// messages of the client, set kgo.WithLogger in Options.Client.
//
// The error of a handler, of Decode and of identify.Rules.Payload is read once, when it is returned. Later
// changes to it have no effect; errors.Is and errors.As find what it wraps, in a StopError too.
//
// # Metrics
//
// New registers these metrics with Options.Telemetry.Registerer, and they are removed when Run returns. All
// have two more labels: group, and member, which is the id of Static, the index of Pinned, or empty. No
// label contains an id or a key.
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
//	dedup_kafka_changelog_restored_ratio gauge      topic, partition          part of the changelog that was read, while a store is restored
//	dedup_kafka_buffered_bytes           gauge      -                         memory of fetched records, at most about MaxBufferedBytes
//	dedup_kafka_partition_paused         gauge      topic, partition          1 for each partition that the application has paused
//	dedup_kafka_partition_stopped        gauge      topic, partition, reason  1 for each partition that is assigned but not read
package kafkaadapter
