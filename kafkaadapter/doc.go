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
// # Guarantees
//
// Each route has a mode. New returns an error if a route lacks an option that its mode requires.
//
// AtMostOnce: the claims of a batch and the next offset commit before the handlers run. No claimed
// event is handled twice. If a handler fails, panics, or is cut off, its event is lost; lost events
// are counted and logged. If the process dies, up to one batch of each partition
// (Options.Batching.MaxBatch) is lost without being counted. When an assignment ends normally,
// claims whose handlers have not begun are withdrawn, and the store's offset is set back. Kafka's
// committed offset follows the handlers.
//
// Transactional: the handlers of a batch run inside one transaction, each under a savepoint. The
// claims, the handlers' writes through tx, the next offset and any dead letters commit together or
// not at all. Each event takes effect once in the store, through crashes and rebalances; its
// handler may run more often. If a handler fails, only its own writes roll back, and the records
// before it in the batch commit. The handler runs again after a backoff, from
// Options.Timeouts.Backoff.Min to Max, up to Transactional.MaxAttempts times. Attempts are kept in
// the store, and a process that dies in a handler counts as an attempt: after an unclean end, the
// records that may have been in progress are handled one by one. With Transactional.HandleBatch,
// one call handles all claimed records of a batch. If it fails, the batch rolls back, and the
// records before the failing one are handled again without it; FailedAt names the failing record,
// or halving the batch finds it.
//
// Route.Concurrency lets the handlers of one partition run in parallel, in order for each key, with
// the same promises.
//
// docs/failures.md describes each failure.
//
// # Limits
//
//   - Effects outside the store happen as often as the handler runs.
//   - A store belongs to one process. Members of a group that exchange partitions must be consumers
//     of one process that share an engine. A partition that moves to a member with a different
//     store stops there (ErrForeignStore). To detect this, the metadata of each offset committed to
//     Kafka contains the store's identity, and the adapter commits a partition's offset before it
//     handles any record of the partition.
//   - Order is kept within a partition or, with Route.Concurrency, for each key. A record in
//     backoff delays the records after it.
//   - Options.Membership.InstanceID gives a member its partitions back at once after a kill, with
//     the classic protocol. With Options.Membership.ServerSideAssignment (KIP-848), a member that
//     was killed waits until its old session ends, 45 s by the broker's default, and one that was
//     stopped a few seconds.
//   - Dead letters are published at least once.
//   - A record that Route.TooOld, TooNew or Failed passes to the handler without a claim is handled
//     each time it is read.
//
// # The path of a record
//
// The client reads committed records only (read_committed); records of aborted transactions are
// never seen, and the offset passes transaction markers. The poll loop passes fetched records to a
// worker for each partition. It pauses fetching for a partition whose worker has enough queued
// records. Queued records occupy about half of Options.Batching.MaxBufferedBytes; the other half is
// for the client's fetches, which are counted in compressed form. A single larger batch of the
// broker can exceed this. The worker makes batches and adapts their size to the duration of the
// handlers (Options.Batching.BatchTime). It identifies and decodes some records ahead of the one
// being handled, without reserving anything for them. If its batches take turns with batches of
// other partitions (engine.LaneMember), it identifies and decodes all records of a batch before the
// turn. For each record:
//
//   - Route.Identify finds the id and the time, unless the authenticated headers of a replayed dead
//     letter contain them. A record without an id or a time is dead-lettered or rejected, as
//     Route.Undecodable says.
//   - The engine claims the event in Route.Scope.
//   - The verdict decides. Claimed: the record is handled. Duplicate: it is skipped, counted, and
//     logged with its first sighting. InFlight: the batch ends before the record, which is claimed
//     again after a short pause. TooOld, TooNew: Route.TooOld and TooNew say whether to reject, to
//     handle without a claim, or to dead-letter. Mismatch, only with Route.Fingerprint:
//     Route.Mismatched decides. Failed: Route.Failed decides.
//
// If the store fails, Run returns the error. Everything acknowledged is in the store. With
// Options.FailOpen, the consumer continues: see Failing open.
//
// # The life of a partition
//
// Each assigned partition has a goroutine until its assignment ends. It is in one of these states,
// and moves from left to right unless something fails:
//
//	             ┌─────────────────────────────────────────────────────┐
//	             ▼                                                     │
//	assigned ─▶ lookingUp ─▶ takingOver ─▶ signing ─▶ publishing ◀─▶ running ◀─▶ silent, paused
//	             ▲   │            │                    ▲   │           │
//	             │   ▼            ▼                    │   ▼           ▼
//	             └─stopped◀───────┴────────────────────┴─stopped◀──────┘     any ─▶ ended
//
//	any, if the store has failed ─▶ failingOpen ─▶ unprotected ─▶ lookingUp (with Options.FailOpen)
//
//	state        next                                                          what happens in it
//	lookingUp    takingOver lookingUp failingOpen stopped ended                the brokers are asked for the topic's id, the log's bounds and the end of the last leader epoch
//	takingOver   signing lookingUp failingOpen stopped ended                   these are compared with the store and the group's commit; the assignment becomes the owner
//	signing      publishing lookingUp ended                                    the offset is committed to Kafka with the store's identity
//	failingOpen  unprotected lookingUp failingOpen stopped ended               the store is unavailable: reading begins at the current or Kafka's offset
//	publishing   running failingOpen stopped ended                             dead letters that are not published yet are published
//	running      publishing paused silent lookingUp failingOpen stopped ended  records are handled
//	unprotected  paused silent lookingUp stopped ended                         the store is unavailable: records are handled without claims
//	paused       running unprotected ended                                     the application has paused the partition (Consumer.Pause)
//	silent       running unprotected ended                                     the broker has records but does not send them, or does not answer
//	stopped      lookingUp publishing ended                                    the partition is not read, for a stated reason, until the next try
//
// The partitions' goroutines look up, compare, seek and retry in parallel; the poll loop and the
// callbacks of the group do no I/O for this. See below for revoked partitions.
//
// # Offsets
//
// Reading begins at the store's offset. Kafka's committed offset follows it, for lag tools
// (Options.Membership.CommitInterval). With each offset, the store keeps the topic's id and the
// leader epoch. The adapter compares the store's offset with the log's start and end, and with the
// group's committed offset (at the assignment, or committed by this assignment since). It does this
// when a partition is assigned, and when a fetch fails because the offset is out of range, the
// topic was recreated, or the log has diverged. Where the leader epoch of the fetched records rises,
// it asks the leader whether the log still has all that was read in the epoch before (one request
// for each change of the leader). If they do not agree, the partition stops with a
// PositionError of one of the kinds ErrBelowLog, ErrAboveLog, ErrRecreated, ErrForeignStore,
// ErrEmptyStore, ErrKafkaAhead, ErrOffsetReset, ErrLogDiverged, ErrModeChanged,
// ErrPartitionsChanged. The documentation of each lists its recovery policies. Options.Recovery chooses a policy for every such stop;
// Consumer.AdoptOffset applies one once, to one partition. Without a policy, nothing is skipped or
// read again. No policy removes claims: a claimed event is still a duplicate.
//
// A stopped partition does not end Run, and other partitions continue: see Consumer.Stopped,
// Hooks.OnStop and the metric dedup_kafka_partition_stopped. A stop with a PositionError lasts
// until the assignment ends, and so does one before a record that cannot be identified because the
// broker does not send the topic's id (undecodable), whose id was claimed with another
// Route.Fingerprint (mismatch), or whose dead letter is too large for a transaction (dead_letter), or
// before a batch that is too large to be decompressed (large_batch). The other reasons are transient, and the partition is retried after a
// backoff: a dead letter cannot be published (dead_letter), the leader does not answer
// (unreachable), the topic does not exist (topic_gone), the consumer may not read the topic
// (unauthorized), the client cannot decode the data (unreadable), the client has skipped records
// (gap), an event of AtMostOnce exceeds a limit of the store (limit), or a fetch fails with another
// error (fetch_error). A partition is also reported, while it is retried, if it gets no answer for
// Timeouts.Silence (silent), or if its offset cannot be committed to the group for that time
// (offset_commit). A partition that another consumer of the same store has taken (fenced) is taken
// over again after a heartbeat, unless the group has revoked it. If two consumers are pinned to a
// partition, the earlier one does not read it until a new Run.
//
// # Dead letters
//
// A record becomes a dead letter if it has no usable id or, without Route.Window, no usable time, if
// its last attempt failed, if its handler returned Permanent, or if the policies TooOld, TooNew and
// Mismatched require it. The dead letters of a batch, the dead-lettered claims and the next offset
// commit in one batch. Then the dead letters
// are published to DeadLetters.Topic, and the next batch begins when the broker has acknowledged
// all of them. The topic must exist; this is checked at the start (Consumer.Ready). A dead letter
// has the key, value and headers of its record. The adapter adds headers that begin with
// hapax_dlt_; they contain the record's origin and the reason, as text.
//
// The size of a dead letter is limited by the max.message.bytes of its topic, after compression
// (zstd, unless Options.Client sets another). Because the adapter adds headers, set this limit
// above that of the source topic. If the broker rejects a dead letter because of its size, it is
// published without its value, which stays in the log of the source topic as long as that retains
// it; or the partition stops (deadletter.Options.StopTooLarge).
//
// To replay a dead letter, send it with its headers to its source topic, as examples/replay does,
// or to a topic of deadletter.Options.RetryTopics. It is handled once more, with Record.Reopened
// set; a second replay is a duplicate. If its event was never claimed, because it was too old or too
// new, the record is identified anew, so that its time can be corrected. Forged headers have no
// effect, because the headers are authenticated with a secret of the store (RotateSecret). A record
// whose headers are not accepted is judged by its own id, with a warning, and counted in
// dedup_kafka_refused_replays_total: if its event is claimed, it is a duplicate and not handled.
//
// # Holds
//
// Each partition has a hold in the engine, named kafka/<group>/<topic>/<partition>, that keeps the
// weeks that its unread records need. Its time is the lowest event time of the last batch minus
// Route.AllowedLateness; when the partition has caught up, it is the current time minus
// AllowedLateness. The hold remains when the consumer ends. The application must release the holds
// of partitions that will not be read again (Engine.Holds, Engine.ReleaseHold).
//
// # Failing open
//
// With Options.FailOpen, only for AtMostOnce, the consumer continues if its store fails or cannot
// be opened at the start. Until FailOpen has opened the store, records are handled without claims,
// with the verdict engine.Failed: copies are handled again, event times are not checked, and a
// record that must become a dead letter stops its partition. An error is logged,
// dedup_kafka_unprotected is 1, the records are counted in dedup_kafka_unprotected_total, and Ready
// returns ErrUnprotected.
//
// Reading continues at the current offset, or at Kafka's committed offset if the store was not
// available at the assignment. If there is no committed offset, reading begins with the oldest
// record. With Route.Start Latest, the partition waits for the store instead, because only the
// store knows whether the group has read the partition. If Kafka's offset was not committed by this
// consumer, the partition stops until the store is open (ErrEmptyStore), unless Recovery.EmptyStore
// is set. Every Membership.CommitInterval, offsets are committed to Kafka with a mark; if the
// process dies, records handled since the last commit are handled again. When the store is open,
// each partition continues at the later of the store's and Kafka's offset. Records below Kafka's
// offset were handled without claims and are not handled again; the store records this
// (Consumer.Adoptions, kind RanOpen). Records below the store's offset were claimed. If a batch was
// being committed when the store failed, its outcome is unknown. Its records are handled without
// claims in either case, even by a later process, so none is lost.
//
// The mark contains the store's identity. If FailOpen opens a different store, an empty one or a
// backup, the partitions stop as at any start (ErrForeignStore).
//
// # Rebalances and shutdown
//
// A revoked partition waits for its running handler for at most Options.Timeouts.Drain, or
// Options.Timeouts.Shutdown when Run ends. Then the handler's context ends and the partition is
// fenced. The owner of a partition is a key in the store that each batch reads, so no batch of an
// earlier owner commits. Lost partitions are fenced at once. Handlers should watch their context.
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
// addition to the labels listed, all have the labels group and member
// (Options.Membership.InstanceID or Pinned.Ordinal). No label contains an id or a key.
//
//	metric                               kind       labels                    figure
//	dedup_kafka_records_total            counter    topic, outcome            records of committed batches, by verdict; AtMostOnce: counted when the handlers have begun, without withdrawn claims
//	dedup_kafka_unclaimed_total          counter    topic                     records handled without a claim, by policy
//	dedup_kafka_unprotected_total        counter    topic                     records handled without a claim because the store was unavailable (Options.FailOpen)
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
//	dedup_kafka_partition_paused         gauge      topic, partition          1 for each partition that the application has paused
//	dedup_kafka_partition_stopped        gauge      topic, partition, reason  1 for each partition that is assigned but not read
//
// # Logs
//
// Options.Telemetry.Logger gets these messages. Error: a partition stops, a dead letter still
// cannot be published, claimed events were lost, a handler was cut off, a topic does not exist, a
// dead-letter topic cannot be written, or the store has failed with Options.FailOpen. Warn: failed
// attempts, dead letters, replays that are not accepted, records rejected or handled without a claim, applied recovery policies,
// lost partitions, and errors that the client retries itself. Info: a partition continues after a
// stop. Duplicates are logged at Options.Telemetry.DuplicateLevel, Debug by default. To log
// messages of the client, set kgo.WithLogger in Options.Client.
//
// # Where to start reading
//
// mode.go, route.go and options.go have the options; control.go and health.go have the methods to
// call while Run runs. consumer.go connects the parts of a consumer. A record passes through these
// files from top to bottom:
//
//	poll.go         fetches it and puts it into the queue of its partition (queue.go)
//	worker.go       the partition's goroutine takes it from there and makes a batch
//	epochs.go       makes sure that the log was not rewritten before it
//	gap.go          makes sure that no record before it is missing
//	lookahead.go    identifies it and reads the filters, some records at a time; decode.go decodes it
//	batch.go        judges it in a transaction; parts.go does that in parallel, pool.go keeps the order of keys
//	hands.go        makes the copy that the application's functions get
//	handlers.go     calls its handler; handlebatch.go hands several records to HandleBatch
//	letters.go      makes a dead letter of it if it cannot be handled
//	batchwrites.go  puts the next offset, attempts, dead letters and the hold into the transaction
//	atmostonce.go   with AtMostOnce: runs its handler after the commit; backlog.go takes back what has not begun
//	publish.go      publishes its dead letter
//	commit.go       commits the offset to Kafka
//
// states.go has the states of a partition, each with the function that does its work. partition.go
// is an assignment as the poll loop and the group's callbacks see it, reading.go what only its
// goroutine uses. lookup.go, takeover.go and adopt.go decide where to read (position.go compares
// offsets, recovery.go has the policies); open.go has the client seek there. fence.go keeps other
// owners out, offsets.go and hold.go have the offsets and the hold. stops.go and waiting.go are for
// a partition that is not read, unprotected.go for one without a store. assign.go has the callbacks
// of the group, pin.go assigns without one, store.go opens the store, and lettertopics.go checks
// the dead-letter topics.
package kafkaadapter
