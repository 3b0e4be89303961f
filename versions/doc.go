// Package versions stores rows of which the newest version wins, in whatever order versions arrive.
//
// A [Table] keeps its rows in the store of an engine. Changes are put in transactions, together
// with claims, offsets and the application's own keys, and so also in the handler of a Kafka
// consumer:
//
//	users, err := versions.New(eng, "users", versions.Options{})
//	err = eng.Update(ctx, func(tx *engine.Tx) error {
//		return users.In(tx).Put(versions.Row{Tenant: "acme", Key: key, Version: lsn, Payload: row})
//	})
//	answer, err := users.Get(ctx, "acme", key)
//
// Put reads nothing. The version that a reader sees depends only on the set of versions that were
// put: it makes no difference if a change is delivered twice, late, or in another order. See
// [TxTable.Put] for versions that are equal.
//
// # Versions
//
//	source                                            Version                 Offset
//	counts up with each change of a row               that count              -
//	has times, such as epoch milliseconds             the time                of the record
//	promises only the order in which it sends, as     offset of the record    -
//	Debezium does for each key of a partition
//
// Each change of a row must have a different version, or equal versions may occur only in changes
// from one partition of the source. Equal versions are ordered by offset, and a change that is sent
// again keeps its first offset. As a consequence, the second of two changes with the same version
// and content, such as two deletions in one millisecond, counts as a repeat. To recognize repeats,
// all contents of the newest version are stored until a newer version arrives. So a table grows if
// its Version rarely changes.
//
// A field of a Debezium event is not a version: source.lsn and source.sequence do not order the
// events of snapshots and of transactions that were open meanwhile, and may be null. If the Version
// is the offset, claim the event by its identity, so that an event that is sent again is not
// applied again: see examples/changes. If the payload of a record lacks the version, do not put the
// row with another one: reject the record, in a Kafka handler with kafkaadapter.Permanent.
//
// # Partial rows
//
// Some sources omit values that did not change: Debezium sends __debezium_unavailable_value for
// large values of Postgres. Put such a row with Row.Partial, into a table with Options.Fill.
// Readers get each missing value from the newest earlier version that has it, even if that version
// arrives later. Prune keeps the versions that this needs. Values from before a deletion are not
// used.
//
// # Reads
//
//	read                          returns                                     as of
//	Table.Get                     the newest version                          now, durable
//	Table.Scan                    the newest version of each row              now, durable, page by page
//	Table.ScanWithOlderVersions   every version that is stored                now, durable, page by page
//	TxTable.Get, TxTable.Scan     the newest versions, and own writes         the begin of the transaction; serializable
//
// A result of a read outside a transaction has LastApplied, the time of the last change of the
// table that the result certainly contains.
//
// # Space
//
// Versions that a newer one has replaced remain until [Table.Prune] removes them, which [Table.Run]
// calls every hour. Until then they take space and make scans slower, but never change a result.
// Prune also removes deletions older than Options.KeepDeletions, with a safeguard against a wrong
// clock. [Table.Erase] removes a row with all its versions permanently.
package versions
