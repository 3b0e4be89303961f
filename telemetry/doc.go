// Package telemetry exports the metrics and spans of an engine to Prometheus and OpenTelemetry, and
// has the Options that say where all packages send logs, metrics and traces.
//
// An Observer is made first, passed to the engine, and then watches it:
//
//	tel := telemetry.Options{Logger: logger, Registerer: registry, Namespace: "im2be"}
//	obs, err := telemetry.New(tel)
//	eng, err := engine.Open(store, engine.Options{Observer: obs})
//	stop := obs.Watch(eng)
//	consumer, err := kafkaadapter.New(eng, kafkaadapter.Options{Telemetry: tel, ...})
//
// New registers all metrics or none. Watch adds the figures that only the engine has, until stop is
// called or the engine is closed. Neither makes a scrape fail. Close unregisters the metrics.
//
// # Metrics
//
// Names begin with the namespace, if there is one: im2be_dedup_claims_total.
//
//	metric                                     kind       labels                      figure
//	dedup_claims_total                         counter    consumer_scope_id, outcome  verdicts
//	dedup_claim_attempts_total                 counter    outcome                     verdicts, including those that were rolled back
//	dedup_scope_overflow_claims_total          counter                                verdicts counted under the scope _other
//	dedup_claim_duration_seconds               histogram  call                        time of one call that claims
//	dedup_sync_duration_seconds                histogram                              time until a batch of the store was durable
//	dedup_synced_claims_total                  counter                                claims in those batches
//	dedup_figures_unavailable_total            counter                                scrapes in which the engine did not answer
//
//	while an engine is watched and open:
//	dedup_engine_stopped                       gauge                                  1 once the store has failed
//
//	while it works, too:
//	dedup_claims_withdrawn_total               counter                                claims withdrawn because their events were not handled
//	dedup_claims_at_risk                       gauge                                  events whose callers have left and whose claims are not withdrawn yet
//	dedup_filter_negatives_total               counter                                events that the filter alone found new
//	dedup_filter_false_positives_total         counter                                events that it wrongly considered possible
//	dedup_filter_bytes                         gauge                                  memory of the filters
//	dedup_filters_saturated                    gauge                                  weeks whose filter is full and may not grow
//	dedup_filters_evicted                      gauge                                  weeks whose filter gave its memory to those of later weeks
//	dedup_filter_rebuilding                    gauge                                  1 while the filters are not loaded yet
//	dedup_filter_rebuilt_claims                gauge                                  claims that their rebuild has read so far
//	dedup_cache_hits_total                     counter                                duplicates found in the cache
//	dedup_store_reads_total                    counter                                look-ups in the store
//	dedup_store_written_bytes_total            counter                                bytes written to files
//	dedup_store_bytes                          gauge      state (disk, reclaimable)   disk: all files; reclaimable is a part of it
//	dedup_store_damaged_tables                 gauge                                  tables with damaged claims (Stats.Store.Damaged)
//	dedup_store_without_reserve                gauge                                  1 while the disk is too full for the store's reserve (Stats.Store.WithoutReserve)
//	dedup_week_claims                          gauge      week_start                  claims of a retained week
//	dedup_week_store_bytes                     gauge      week_start                  their bytes on disk, estimated
//	dedup_snapshot_failures_total              counter                                snapshots of the filters that were not written
//	dedup_open_transactions                    gauge                                  transactions whose closures run
//	dedup_holds                                gauge                                  holds that keep weeks
//	dedup_oldest_week_start_timestamp_seconds  gauge                                  Monday of the oldest retained week
//
// The outcomes are the names of the engine's verdicts: claimed, duplicate, in_flight, too_old,
// too_new, error, pending, mismatch. From the first verdict in a scope on, the counters of all
// eight outcomes exist, with the value 0. Verdicts in a transaction are counted when it commits,
// except for those that a rollback to a savepoint has undone. dedup_claim_attempts_total counts all
// of them when the transaction ends: the difference is wasted work. The values of call are single
// (TryClaim), batch (TryClaimBatch with more than one event) and transaction (a run of Update's
// closure that judged an event, until it is durable or undone). A call that ends before it judges
// an event, because its context is done, is not counted. Claims that are withdrawn
// (driver.Unclaim) remain in dedup_claims_total, and dedup_claims_withdrawn_total counts them:
// the difference is the number of events that remained claimed. Counters of a watched engine start
// when it is opened. Histograms have native and classic buckets. If a span is sampled, its trace is
// the exemplar.
//
// # Spans
//
// Names begin with the namespace and a dot, if there is one: im2be.dedup.try_claim. The parent is
// the span of the context given to TryClaim, TryClaimBatch or Update.
//
//	span                   made for                    attributes
//	dedup.try_claim        a call with one event, and  consumer.scope_id, event.id, event.week_start (the Monday),
//	                       each event of a batch or a  kafka.topic, kafka.partition, kafka.offset, dedup.outcome
//	                       transaction if
//	                       Detail.SpanPerEvent
//	dedup.try_claim_batch  any other batch             dedup.events, dedup.claimed, dedup.duplicate, dedup.in_flight,
//	dedup.update           each run of the closure     dedup.too_old, dedup.too_new, dedup.error, dedup.pending,
//	                       of a transaction            dedup.mismatch; consumer.scope_id, kafka.topic and kafka.partition
//	                                                   if all events share them
//
// The outcome error sets the status Error and records the error; a batch records the first one. A
// transaction that does not commit has the status Error with the error of its run. Attributes are
// set when the verdict is known, so samplers do not see them, and only if the span is recorded.
// Scopes and topics are truncated to 1 KiB, texts of errors to 2 KiB, and characters in them that
// are not printable are escaped. Options.IDs says how ids are shown.
//
// # Cost
//
// For a call or a transaction whose span is not recorded, only one Start of the provider allocates
// memory; with the no-op provider, nothing does. The Observer is then not called for the single
// events of a transaction. Counting allocates nothing for a known scope, except for the exemplar of
// a sampled trace. Series are bounded: 8 for each of at most Detail.MaxScopes scopes and of _other
// and _invalid, 2 for each of at most Detail.MaxWeeks weeks and of _older, and some 80 more.
//
// A scrape calls Engine.Stats, and Engine.Weeks at most once in Detail.WeeksEvery. Weeks runs in
// the committer between claims, and reads a size from the store for each scope and week. It gets at
// most about 5 % of the time: if it needs more, it is called less often. A scrape waits up to 2
// seconds for each of the two calls. If one does not return, the scrape omits its figures (for
// weeks, it repeats the previous ones) and counts this.
package telemetry
