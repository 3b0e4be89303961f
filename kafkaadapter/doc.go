// Package kafkaadapter consumes Kafka topics as a member of a group and handles each event once: it polls, claims in an
// engine, runs the host's handler, and commits the claim and the next offset in one batch of the engine's store.
//
//	consumer, err := kafkaadapter.New(eng, mode, kafkaadapter.Options{
//		Group: "billing", Topics: []string{"payments"}, Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:9092")},
//	})
//	err = consumer.Run(ctx) // until ctx ends
//
// # What is promised
//
// The mode is a type, and New refuses one that lacks what it needs.
//
// OwnCommit: the claims of a batch and the next offset commit, then the handlers run. No claimed event is handled twice.
// One whose handler fails, panics, or is cut off is lost: it is counted and logged, except for what a process takes with it that
// dies, which is at most one batch of each partition (Options.MaxBatch).
//
// WithWork: the handlers of a batch run inside one transaction, each under a savepoint. The claims, what the handlers
// wrote through tx, the next offset, and a dead letter if there is one commit together or not at all. The effect of an
// event in the store happens once, through crashes and rebalances; the handler may run more often. A handler that fails
// is undone alone, and what came before it in the batch commits. It is run again after a back-off, Options.FirstBackoff to
// LongestBackoff, until WithWork.MaxAttempts. Attempts are kept in the store, and a process that dies in a handler counts
// as one: after such an end the records that may have been under way are handled one by one.
//
// docs/kafka.md goes through the failures one by one.
//
// # What is not promised
//
//   - Effects outside the store happen as often as the handler runs.
//   - A store belongs to one process. Members of a group that may exchange partitions are consumers of one process that
//     share an engine; a member with another store is stopped when a partition moves to it (ErrForeignStore). For this,
//     each position that is committed to Kafka bears the store's identity, and a partition's is committed before
//     anything of it is handled.
//   - Order is kept within a partition. A record in back-off holds up those behind it.
//   - Options.InstanceID gives a member back its partitions at once after a kill, with the classic protocol. With
//     Options.ServerSideAssignment (KIP-848) it does not: the member waits until its old session ends, 45 s by the
//     broker's default. It waits for that after a clean end, too.
//   - Dead letters are published at least once.
//   - What Options.TooOld, TooNew and Failed let a handler have without a claim is handled as often as it is read.
//
// # The way of a record
//
// The client reads committed records only (read_committed); records of aborted transactions are never seen, and the
// position passes the markers of transactions. The poll loop hands what it fetched to a worker for each partition, and
// stops fetching a partition whose worker has had enough to do for a while: what waits in memory is bounded by one fetch
// (kgo.FetchMaxBytes, kgo.FetchMaxPartitionBytes) beside the one that the client holds, and a few batches for each
// partition. The worker makes batches, and chooses their size by how long handlers take (Options.BatchTime). It identifies
// some records at a time, ahead of the one that is handled, and holds nothing for those. For each record
//
//   - Identify finds the id and the time, or the sealed headers of a dead letter that was sent back do; one without is
//     a dead letter at once, and stops its partition if there are no dead letters;
//   - the engine judges the event under Options.Scope;
//   - claimed: it is handled. duplicate: it is skipped, counted, and logged with its first sighting. in flight: the batch
//     ends before it, and it is judged again after a short pause. too old, too new: Options.TooOld and TooNew say whether to
//     reject, to handle without a claim, or to dead-letter. Not judged: Options.Failed.
//
// If the store itself fails, Run ends with the error. Nothing was acknowledged then that is not in the store.
//
// # Positions
//
// The store's offset is where reading begins; Kafka's committed offset follows, for lag tools (Options.CommitInterval).
// With each offset the store keeps the topic's id and the leader epoch. When a partition is assigned, and when the broker
// answers that an offset is out of range, that the topic is another one, or that its log diverged, all of that is
// compared with the log's start and end and with what the group has committed. Where it does not fit together the
// partition stops with a PositionError of one of the kinds ErrBelowLog, ErrAboveLog, ErrRecreated, ErrForeignStore,
// ErrEmptyStore, ErrKafkaAhead, ErrMoved, ErrLogDiverged. The comment of each names its ways on, and Options.Positions
// chooses one. Nothing is skipped or read again without that, and no way on removes claims: what the store knows is
// still a duplicate.
//
// A partition that stops does not end Run, and others go on: see Consumer.Stopped, Options.OnStop and the metric
// dedup_kafka_partition_stopped. A stop for a PositionError or for ErrUndecodable lasts for the assignment. One whose
// reason may pass ends by itself: a dead letter that cannot be published, a partition that the broker tells nothing of,
// data that the client cannot read.
//
// # Dead letters
//
// A record that has no usable id or time, whose handler failed for the last time or with Permanent, or that a policy
// sends there, is put among the dead letters: the letter, the claim that is marked dead-lettered, and the next offset are
// in one batch, then the letter is published to DeadLetters.Topic, and the partition is read on when the broker has
// it. The topic has to exist. Key, value and headers are the record's own; headers that begin with hapax_dlt_ are the
// adapter's, and say where the record came from and why it is there.
//
// To replay a letter, send it to its topic again with its headers, as examples/replay does. It is handled once more, with
// Record.Reopened set. Sent twice, it is a duplicate the second time. A made-up header reopens nothing: the headers are
// sealed with a secret of the store.
//
// # Holds
//
// Each partition keeps a hold in the engine, named kafka/<group>/<topic>/<partition>, so that no week is dropped that its
// unread records need: at the lowest event time of its last batch, less Options.AllowedLateness. A partition that is
// caught up holds at the present time less AllowedLateness. The hold stays when the consumer ends. That of a partition
// that will not be read any more is the host's to release (Engine.Holds, Engine.ReleaseHold).
//
// # Rebalances and the end
//
// A partition that is given away waits for the handler that runs, for Options.DrainTimeout at most; at the end of Run it
// is Options.ShutdownTimeout. Then its context ends and it is fenced: the owner of a partition is written in the store
// and read in each batch, so that no batch of an earlier owner commits. Partitions that were lost are fenced at once. A
// handler should watch its context.
//
// # Reserved
//
// Host keys that begin with KeyPrefix belong to the adapter, in every store that it is used with: writing to them
// breaks fencing, attempts and dead letters. So do holds whose names begin with kafka/, and headers that begin with
// hapax_dlt_.
//
// # Metrics
//
// Options.Registerer has these from New until Run returns. All have the label group, and member if Options.InstanceID
// is set, beside those named here. Nothing is labelled by id or key.
//
//	metric                               kind       labels                    figure
//	dedup_kafka_records_total            counter    topic, outcome            records of committed batches, by verdict
//	dedup_kafka_unclaimed_total          counter    topic                     records handled without a claim, by policy
//	dedup_kafka_ids_total                counter    topic, rule               ids by the rule that found them
//	dedup_kafka_times_total              counter    topic, rule               event times by the rule that found them
//	dedup_kafka_unreadable_times_total   counter    topic                     times passed over because they could not be read
//	dedup_kafka_failed_attempts_total    counter    topic                     attempts of a handler that failed
//	dedup_kafka_reopened_total           counter    topic                     replays of dead letters that were handled
//	dedup_kafka_dead_letters_total       counter    topic, reason             dead letters that the broker has
//	dedup_kafka_lost_total               counter    topic                     own-commit: claimed, and the handler failed or was cut off
//	dedup_kafka_fenced_total             counter    topic                     batches dropped because the partition had another owner
//	dedup_kafka_paused_total             counter    topic                     pauses of fetching for a worker that had enough to do
//	dedup_kafka_stops_total              counter    topic, reason             stops of a partition
//	dedup_kafka_fetch_errors_total       counter    topic                     errors that the client told when it was polled
//	dedup_kafka_batch_records            histogram  topic                     records in one batch of the store
//	dedup_kafka_handler_seconds          histogram  topic                     time in the handlers of a batch
//	dedup_kafka_commit_seconds           histogram  topic                     time to judge and commit a batch, without handlers
//	dedup_kafka_lag_records              gauge      topic, partition          from the store's offset to the last stable offset
//	dedup_kafka_hold_age_seconds         gauge      topic, partition          how far back the partition keeps weeks
//	dedup_kafka_batch_age_seconds        gauge      topic, partition          how long the present batch has been under way; grows while a handler hangs
//	dedup_kafka_partition_stopped        gauge      topic, partition, reason  1 for each partition that is assigned and not read
//
// # Logs
//
// Options.Logger is told, at level Error: a partition that stops, a dead letter that still cannot be published, events
// that were claimed and lost, a handler that was cut off, a topic that does not exist. At Warn: failed attempts, dead
// letters, records that were rejected or handled without a claim, a way on that was taken, lost partitions, errors that
// the client mends itself. At Info: a partition that goes on after a stop. Duplicates are logged at
// Options.DuplicateLevel, which is Debug unless set. The client's own log is kgo.WithLogger in Options.Client.
//
// # Where to start reading
//
// mode.go and options.go are what a host sees. worker.go is the life of a partition's records and outcome.go that of one
// record; assign.go begins and ends an assignment, and position.go decides where; letters.go publishes dead letters, and
// replay.go knows them again; identify.go finds ids and times.
package kafkaadapter
