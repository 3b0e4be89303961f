// Package kafkaadapter consumes Kafka topics as a member of a group and handles each event once: it
// polls, claims in an engine, runs the application's handler, and commits the claim and the next
// offset in one batch of the engine's store.
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
// # What is promised
//
// Each route of topics has a mode of its own. New refuses a route that lacks a part that its mode
// needs.
//
// AtMostOnce: the claims of a batch and the next offset commit, then the handlers run. No claimed
// event is handled twice. One whose handler fails, panics, or is cut off is lost: it is counted and
// logged, except for what a process takes with it that dies, which is at most one batch of each
// partition (Options.Batching.MaxBatch). When an assignment ends in order, the claims whose
// handlers have not begun are taken back, and the store's offset with them. Kafka's offset follows
// the handlers.
//
// Transactional: the handlers of a batch run inside one transaction, each under a savepoint. The
// claims, what the handlers wrote through tx, the next offset, and a dead letter if there is one
// commit together or not at all. The effect of an event in the store happens once, through crashes
// and rebalances; the handler may run more often. A handler that fails is undone alone, and what
// came before it in the batch commits. It is run again after a backoff,
// Options.Timeouts.Backoff.Min to Max, until Transactional.MaxAttempts. Attempts are kept in the
// store, and a process that dies in a handler counts as one: after such an end the records that may
// have been under way are handled one by one. With Transactional.HandleBatch one call handles all
// claimed records of a batch. A failure undoes the batch; then the records before the one that
// failed, which FailedAt names or halving finds, are handled again without it.
//
// Route.Concurrency lets the handlers of one partition run in parallel, in order for each key, with
// the same promises.
//
// docs/failures.md goes through the failures one by one.
//
// # What is not promised
//
//   - Effects outside the store happen as often as the handler runs.
//   - A store belongs to one process. Members of a group that may exchange partitions are consumers
//     of one process that share an engine; a member with another store is stopped when a partition
//     moves to it (ErrForeignStore). For this, each position that is committed to Kafka bears the
//     store's identity, and a partition's is committed before anything of it is handled.
//   - Order is kept within a partition, with Route.Concurrency for each key. A record in backoff
//     delays those after it.
//   - Options.Membership.InstanceID gives a member back its partitions at once after a kill, with
//     the classic protocol. With Options.Membership.ServerSideAssignment (KIP-848) it does not: the
//     member waits until its old session ends, 45 s by the broker's default. It waits for that
//     after a clean end, too.
//   - Dead letters are published at least once.
//   - What Route.TooOld, TooNew and Failed let a handler have without a claim is handled as often
//     as it is read.
//
// # The way of a record
//
// The client reads committed records only (read_committed); records of aborted transactions are
// never seen, and the position passes the markers of transactions. The poll loop hands what it
// fetched to a worker for each partition, and stops fetching a partition whose worker has had
// enough to do for a while: what waits in memory is bounded by one fetch (kgo.FetchMaxBytes,
// kgo.FetchMaxPartitionBytes) in addition to the one that the client holds, and a few batches for
// each partition. The worker makes batches, and chooses their size by how long handlers take
// (Options.Batching.BatchTime). It identifies some records at a time, ahead of the one that is
// handled, and holds nothing for those. While its batches take turns with those of other partitions
// (engine.LaneMember), it identifies and decodes all records of a batch before the turn. For each
// record
//
//   - Route.Identify finds the id and the time, or the sealed headers of a replayed dead letter do;
//     for a record without them Route.Undecodable is the policy: a dead letter at once, or
//     rejected;
//   - the engine judges the event under Route.Scope;
//   - claimed: it is handled. duplicate: it is skipped, counted, and logged with its first
//     sighting. in flight: the batch ends before it, and it is judged again after a short pause.
//     too old, too new: Route.TooOld and TooNew say whether to reject, to handle without a claim,
//     or to dead-letter. Not judged: Route.Failed.
//
// If the store itself fails, Run ends with the error. Nothing was acknowledged then that is not in
// the store. With Options.FailOpen it continues: see Failing open.
//
// # The life of a partition
//
// Each assigned partition has a goroutine for the time of its assignment. It is in one of these
// states, and goes from left to right unless something fails:
//
//	             ┌─────────────────────────────────────────────────────┐
//	             ▼                                                     │
//	assigned ─▶ lookingUp ─▶ takingOver ─▶ signing ─▶ publishing ◀─▶ running ◀─▶ silent, paused
//	             ▲   │            │                    ▲   │           │
//	             │   ▼            ▼                    │   ▼           ▼
//	             └─stopped◀───────┴────────────────────┴─stopped◀──────┘     any ─▶ ended
//
//	any that uses a store that has failed ─▶ failingOpen ─▶ unprotected ─▶ lookingUp (with Options.FailOpen)
//
//	state        next                                                          what happens in it
//	lookingUp    takingOver lookingUp failingOpen stopped ended                the brokers are asked for the topic's id, the log's bounds and the end of the last leader epoch
//	takingOver   signing failingOpen stopped ended                             these are compared with the store and the group's commit; the assignment becomes the owner
//	signing      publishing lookingUp ended                                    the offset is committed to Kafka with the store's identity
//	failingOpen  unprotected lookingUp failingOpen stopped ended               the store is away: reading begins where it was, or at Kafka's offset
//	publishing   running failingOpen stopped ended                             dead letters that the broker does not have are published
//	running      publishing paused silent lookingUp failingOpen stopped ended  records are handled
//	unprotected  paused silent lookingUp stopped ended                         the store is away: records are handled without claims
//	paused       running unprotected ended                                     the application has paused the partition (Consumer.Pause)
//	silent       running unprotected ended                                     the broker has records and does not send them, or does not answer
//	stopped      lookingUp publishing ended                                    the partition is not read, for a stated reason, until the next try
//
// The poll loop and the callbacks of the group do no I/O for it: looking up, comparing, seeking and
// retrying happen in the goroutines, in parallel. A revoked partition ends in order; see below.
//
// # Offsets
//
// The store's offset is where reading begins; Kafka's committed offset follows, for lag tools
// (Options.Membership.CommitInterval). With each offset the store keeps the topic's id and the
// leader epoch. A partition that is assigned is looked up, as is one whose fetch fails because the
// offset is out of range, the topic is another one, or the log has diverged: the store's offset is
// compared with the log's start and end, and with the commit that the group had when the partition
// was assigned or that this assignment has made since. Where these do not agree the partition stops
// with a PositionError of one of the kinds ErrBelowLog, ErrAboveLog, ErrRecreated, ErrForeignStore,
// ErrEmptyStore, ErrKafkaAhead, ErrOffsetReset, ErrLogDiverged, ErrModeChanged. The comment of each
// names its recovery policies, and Options.Recovery chooses one, for each time, and
// Consumer.AdoptOffset one for a single partition and a single time. Nothing is skipped or read
// again without that, and no policy removes claims: an event that the store has is still a
// duplicate.
//
// A partition that stops does not end Run, and others continue: see Consumer.Stopped, Hooks.OnStop
// and the metric dedup_kafka_partition_stopped. A stop for a PositionError lasts for the
// assignment. The other reasons may pass, and the partition is tried again after a backoff: a dead
// letter that cannot be published (dead_letter), a leader that does not answer (unreachable), a
// topic that is gone (topic_gone) or that the consumer may not read (unauthorized), data that the
// client cannot read (unreadable), records that the client has skipped (gap), another error of a
// fetch (fetch_error). Also reported, while it is tried again, is a partition that gets no answer
// for Timeouts.Silence (silent), and one whose offset cannot be committed to the group for that
// time (unsigned). One that another consumer of the same store has taken (fenced) is taken over
// again after a heartbeat, if the group has not taken it away by then; if two are pinned to it, the
// earlier one does not read it until Run is called anew.
//
// # Dead letters
//
// A record becomes a dead letter if it has no usable id or time, if its handler failed for the last
// time or with Permanent, or by the policies TooOld and TooNew. The letters of a batch, the claims
// that are marked dead-lettered, and the next offset commit in one batch. Then the letters are
// published to DeadLetters.Topic, and the next batch begins when the broker has acknowledged all of
// them. The topic has to exist, which is checked at the start (Consumer.Ready). Key, value and
// headers are the record's own; headers that begin with hapax_dlt_ are the adapter's, and say where
// the record came from and why it is a dead letter.
//
// A letter may be as large as its topic takes (max.message.bytes, after compression, zstd unless
// Options.Client sets another). The adapter adds headers: set the limit above that of the topic
// that is read. A letter that the broker refuses all the same stops its partition, or is published
// without its value (deadletter.Options.OmitTooLarge).
//
// To replay a letter, send it to its topic again with its headers, as examples/replay does. It is
// handled once more, with Record.Reopened set. Sent twice, it is a duplicate the second time. A
// forged header reopens nothing: the headers are sealed with a secret of the store.
//
// # Holds
//
// Each partition keeps a hold in the engine, named kafka/<group>/<topic>/<partition>, so that no
// week is dropped that its unread records need: at the lowest event time of its last batch, less
// Route.AllowedLateness. A partition that is caught up holds at the present time less
// AllowedLateness. The hold stays when the consumer ends. That of a partition that will not be read
// any more is the application's to release (Engine.Holds, Engine.ReleaseHold).
//
// # Failing open
//
// With Options.FailOpen, for AtMostOnce only, the consumer continues when its store fails, or
// cannot be opened at the start. Until FailOpen has opened it records are handled without claims,
// with the verdict engine.Failed: a copy is handled again, times are not judged, and a record that
// has to become a dead letter stops its partition until then. An error is logged,
// dedup_kafka_unprotected is 1, the records are counted in dedup_kafka_unprotected_total, and Ready
// returns ErrUnprotected.
//
// Reading continues where it was, or from Kafka's offset if this assignment did not have the store.
// Without either it begins with the oldest record; with Route.Start Latest the partition waits for
// the store, which alone knows whether the group has read it. A commit that this consumer has not
// made stops the partition until then (ErrEmptyStore), unless Recovery.EmptyStore says otherwise.
// Offsets are committed to Kafka every Membership.CommitInterval, with a mark: a process that dies
// handles again what it has handled since. Once the store is open, each partition continues at the
// later one of its two offsets. What is below Kafka's was handled without claims and is not handled
// again; the store records that (Consumer.Adoptions, kind RanOpen). What is below the store's was
// claimed. A batch that was being committed when the store failed may be in it: its records are
// handled without claims in any case, also by a process that comes after, so that they are not
// lost.
//
// The mark names the store. If FailOpen opens another one, an empty one or a backup, the partitions
// stop as they do at any start (ErrForeignStore).
//
// # Rebalances and the end
//
// A partition that is given away waits for the handler that runs, for Options.Timeouts.Drain at
// most; at the end of Run it is Options.Timeouts.Shutdown. Then its context ends and it is fenced:
// the owner of a partition is written in the store and read in each batch, so that no batch of an
// earlier owner commits. Partitions that were lost are fenced at once. A handler should watch its
// context.
//
// # Reserved
//
// Application keys that begin with KeyPrefix belong to the adapter, in every store that it is used
// with: writing to them breaks fencing, attempts and dead letters. So do holds whose names begin
// with kafka/, and headers that begin with hapax_dlt_.
//
// # Metrics
//
// Options.Telemetry.Registerer has these from New until Run returns. All have the labels group and
// member, which is Options.Membership.InstanceID or Pinned.Ordinal, besides those named here.
// Nothing is labelled by id or key.
//
//	metric                               kind       labels                    figure
//	dedup_kafka_records_total            counter    topic, outcome            records of committed batches, by verdict; AtMostOnce: without those taken back, once the handlers have begun
//	dedup_kafka_unclaimed_total          counter    topic                     records handled without a claim, by policy
//	dedup_kafka_unprotected_total        counter    topic                     records handled without a claim because the store was away (Options.FailOpen)
//	dedup_kafka_ids_total                counter    topic, rule               ids by the rule that found them
//	dedup_kafka_times_total              counter    topic, rule               event times by the rule that found them
//	dedup_kafka_unreadable_times_total   counter    topic                     times passed over because they could not be read
//	dedup_kafka_failed_attempts_total    counter    topic                     attempts of a handler that failed
//	dedup_kafka_reopened_total           counter    topic                     replays of dead letters that were handled
//	dedup_kafka_dead_letters_total       counter    topic, reason             dead letters that the broker has
//	dedup_kafka_skipped_total            counter    topic, reason             records acknowledged unhandled, by policy
//	dedup_kafka_lost_total               counter    topic                     own-commit: claimed, and the handler failed or was cut off
//	dedup_kafka_fenced_total             counter    topic                     batches dropped because the partition had another owner
//	dedup_kafka_paused_total             counter    topic                     pauses of fetching for a worker that had enough to do
//	dedup_kafka_stops_total              counter    topic, reason             stops of a partition
//	dedup_kafka_fetch_errors_total       counter    topic                     errors that the client returned when it was polled
//	dedup_kafka_batch_records            histogram  topic                     records in one batch of the store
//	dedup_kafka_handler_seconds          histogram  topic                     time in the handlers of a batch
//	dedup_kafka_commit_seconds           histogram  topic                     time to judge and commit a batch, without handlers
//	dedup_kafka_lag_records              gauge      topic, partition          from the store's offset to the log's end; AtMostOnce: from the first record whose handler has not begun
//	dedup_kafka_stable_lag_records       gauge      topic, partition          from the store's offset to the last stable offset: readable now
//	dedup_kafka_hold_age_seconds         gauge      topic, partition          how far back the partition keeps weeks
//	dedup_kafka_batch_age_seconds        gauge      topic, partition          how long the present batch has been under way; grows while a handler hangs
//	dedup_kafka_unprotected              gauge      -                         1 while the store is away and records are handled without claims
//	dedup_kafka_partition_paused         gauge      topic, partition          1 for each partition that the application has paused
//	dedup_kafka_partition_stopped        gauge      topic, partition, reason  1 for each partition that is assigned and not read
//
// # Logs
//
// Options.Telemetry.Logger gets, at level Error: a partition that stops, a dead letter that still
// cannot be published, events that were claimed and lost, a handler that was cut off, a topic that
// does not exist, a dead-letter topic that cannot be written, and a store that has failed with
// Options.FailOpen. At Warn: failed attempts, dead letters, records that were rejected or handled
// without a claim, a recovery policy that was applied, lost partitions, errors that the client
// retries itself. At Info: a partition that continues after a stop. Duplicates are logged at
// Options.Telemetry.DuplicateLevel, which is Debug unless set. The client's own log is
// kgo.WithLogger in Options.Client.
//
// # Where to start reading
//
// mode.go, route.go and options.go are what an application sets, and control.go and health.go what
// it calls while Run runs. consumer.go puts the parts of a consumer together. A record passes these
// files from top to bottom:
//
//	poll.go        fetches it and puts it into the queue of its partition (queue.go)
//	worker.go      the partition's goroutine takes it from there and makes a batch
//	gap.go         makes sure that no record before it is missing
//	lookahead.go   identifies it and asks the store about it, some records at a time
//	batch.go       judges it in a transaction; parts.go does that in parallel, pool.go keeps the order of keys
//	handlers.go    calls its handler; handlebatch.go hands several records to HandleBatch
//	letters.go     makes a dead letter of it if it cannot be handled
//	seal.go        puts the next offset, attempts, dead letters and the hold into the transaction
//	atmostonce.go  with AtMostOnce: runs its handler after the commit; backlog.go takes back what has not begun
//	publish.go     publishes its dead letter
//	commit.go      commits the offset to Kafka
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
