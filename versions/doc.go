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
// Put reads nothing. The version comes from the source, and which version a reader sees depends
// only on the set of versions that were put: a change that is delivered twice, late, or in another
// order changes nothing. See [TxTable.Put] for versions that are equal.
//
// # Reads
//
//	read                          returns                                     as of
//	Table.Get                     the newest version                          now, durable
//	Table.Scan                    the newest version of each row              now, durable, page by page
//	Table.ScanWithOlderVersions   every version that is stored                now, durable, page by page
//	TxTable.Get, TxTable.Scan     the newest versions, and own writes         the begin of the transaction; serializable
//
// Results outside a transaction have LastApplied, the time of the last change of the table that
// they are sure to contain.
//
// # Space
//
// Versions that a newer one has replaced remain until [Table.Prune] removes them, which
// [Table.Run] calls every hour. Until then they cost space, and time in scans, but never change a
// result. Prune also removes deletions older than Options.KeepDeletions, and guards them against a wrong
// clock. [Table.Erase] removes a row with all its versions permanently.
package versions
