// Package pebble keeps an engine's claims, state and journal in a directory, with Pebble v2 (an LSM
// tree). It implements [storage.Store]; its documentation has the promises of every store. This
// page says how this one keeps them.
//
// # Durability
//
// A batch is one record of Pebble's log: claims, state, journal entry and batch number, whole or
// not at all. Apply hands it over; a goroutine of the store waits for the syncs in the order of the
// batches.
//
// # Claims before they are in tables
//
// A claim is no key of its own in Pebble's log and memory table: random keys there are what writing
// costs most. The claims of a batch are one packed value, and a table in memory has them for
// reading (table.go). When it is full it is frozen, sorted, and ingested as tables of Pebble's;
// then the packed values are removed (seal.go). Opening a store after a kill reads the packed
// values that are left.
//
// # Memory
//
// Options.CacheBytes for blocks; 2.5 times Options.PendingBytes (about 50 bytes for each claim) for
// claims that are not in tables; Options.MemTableBytes for Pebble's memory table, three of them at
// most. With the defaults 128, 40 and 32 to 96 MiB. When claims come faster than they can be sorted
// and written, Apply waits.
//
// Pebble answers a failed write with a panic, an endless retry, or the unlock of an unlocked mutex
// (where a log is rotated), which no recover catches. So it never hears of one: after the first
// failed write the disk under it becomes a sink, and the store is poisoned before Pebble hears of
// success (disk.go). What is on disk then is what a crash at that moment would have left. Nothing
// of Pebble ends the process: its Fatalf ends a goroutine of Hapax (fault.go).
//
// # What is checked when a store is opened
//
// Pebble takes the first unreadable byte of a MANIFEST or of the newest log for the end that a
// crash left, and then deletes the files that it no longer knows. Before it may write, Open
// therefore checks, without changing a byte:
//
//   - After a clean close: name and size of every file, and the checksum of every file that is not
//     a table, against a record that Close wrote and Open removes before anything else changes
//     (clean.go). Tables carry checksums for every block and for the footer; damage there is an
//     error of the read, or of the Open, that touches it.
//   - After any other end: the MANIFEST and the logs are read to their ends, and a whole chunk
//     after an unreadable place shows that it was not a torn end (chunks.go); all that was attested
//     must be there (attest.go), as must every batch that the log itself promises to be durable
//     (keys.go); the journal must have no gap.
//
// A damaged store gives [storage.ErrDamaged]. So does a MANIFEST or record that is cut off or
// missing.
//
// # What is not
//
// After a kill or a power cut the newest piece of the log is attested by nothing: damage there
// cannot be distinguished from a torn end, and takes the last batches away. That piece is the
// batches whose successor was not yet written when their sync was confirmed: with one batch in
// flight it is the last one (flips at every 5th of 58,291 bytes of the log of a killed store took
// batch 60 of 60 away in the last 964 bytes, and nothing elsewhere; every other flip was refused or
// harmless). With n batches in flight it is at most the last n+1. An idle store closes the gap
// after 20 ms: it writes a durability record to the log and an attestation to its file; then no
// flip of a byte outside of the tables was silent.
// TestAfterAKillUnderLoadOnlyTheLastBatchesCanBeLostToDamage and the tests next to it show the
// method. Cutting the log's file short, or removing it, is noticed up to the newest attestation: 20
// ms idle, a second under load.
//
// The bytes of an event's id are in the log. An attacker who chooses ids, knows the number of a
// log, and has the machine crash in the middle of such a write could make the torn end look like
// damage, never the reverse.
//
// # Dropping
//
// Drop is a range delete for each bucket in one synced batch, with a note where claims of it are
// packed. Reclaim lets Pebble delete the tables that lie wholly in a dropped bucket and then
// rewrites, with pauses, those that hold others as well. EstimateDiskUsage counts by blocks: a
// reclaimed bucket between kept ones may show a block or so that belongs to the buckets next to it.
// With 4 M claims over four weeks the oldest week's space was back after 0.6 s (one scope) and 5.1
// s (200 scopes), on two busy cores:
//
//	HAPAX_DROP=4000000 go test ./engine/pebble -run TestDroppedSpaceComesBack -v
//
// # Reading on
//
// store.go opens and closes; create.go makes a directory a store; keys.go, packed.go and chunks.go
// draw what is on disk; write.go, read.go and drop.go are the store's work, table.go, unsealed.go,
// seal.go and merge.go what happens to claims; verify.go and backup.go the operator's.
// HAPAX_SWEEP=all makes the tests sweep every operation and more bytes.
package pebble
