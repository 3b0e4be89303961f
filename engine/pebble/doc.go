// Package pebble keeps an engine's claims, state and journal in a directory, using Pebble v2 (an
// LSM tree). It implements [storage.Store], which documents the guarantees of every store. This
// page describes this implementation.
//
// # Durability
//
// A batch is one record of Pebble's log, with its claims, state, journal entry and batch number,
// and is applied whole or not at all. Apply passes it to Pebble; a goroutine of the store waits for
// the syncs in the order of the batches.
//
// # Claims before they are in tables
//
// Random keys in the log and memtable would be the largest cost of writing. So the claims of a
// batch are not separate keys there, but one packed value, and a table in memory serves reads of
// them (internal/memtable). When this table is full, it is frozen, sorted, and ingested as tables of Pebble;
// then the packed values are removed (seal.go). After a kill, Open reads the remaining packed
// values (load.go).
//
// # Look-ups
//
// A look-up first asks the tables in memory, then the tables of Pebble with claims, which the store
// opens for itself, with their filters and indexes in memory (internal/runs). Pebble would ask all
// overlapping runs one by one: it is asked only for tables that this index omits.
//
// # Memory
//
// The store needs, with the defaults and with a PendingBytes of 4 MiB:
//
//   - Options.CacheBytes for blocks: 128 MiB
//   - 2.5 times Options.PendingBytes, about 50 bytes for each claim, for claims that are not in
//     tables: 120 and 10 MiB
//   - up to 6 times PendingBytes, about 1.4 bytes for each claim, for the index of tables with
//     claims: 288 and 24 MiB
//   - twice Options.MemTableBytes for memtables: 192 and 16 MiB
//
// A third memtable, while writes are faster than the disk, takes its memory from the blocks. If
// claims arrive faster than they can be sorted and written, Apply waits.
//
// When a write fails, Pebble panics, retries forever, or unlocks an unlocked mutex (during a log
// rotation), which recover cannot catch. So write errors are hidden from Pebble: after the first
// failed write, the file system under it discards all writes and reports success, and the store is
// marked as failed before that (failstop.go). The files on disk then are as after a crash at that
// moment. Pebble cannot end the process: its Fatalf only ends a goroutine of Hapax (fault.go).
//
// # Full disks
//
// Open writes the claims of the log to tables. So that a full disk has room for them, a reserve takes
// space: a file that Open removes when it meets a full disk (reserve.go). It has 4 MiB and as much as the
// logs that are not in tables yet. If it cannot grow, the store fails while it can still be opened. The machine's own file
// system has it, no other [Options.FS]. It is as large as other file systems allow: one that copies on
// write may need space even to remove a file.
//
// # What is checked when a store is opened
//
// Pebble treats the first unreadable byte of a MANIFEST or of the newest log as its end after a
// crash, and then deletes the files that it no longer refers to. Therefore, before Pebble can
// write, Open checks the following without changing a byte:
//
//   - After a clean close: the name and size of every file, and the checksum of every file except
//     tables, are compared with a record that Close wrote and that Open removes before any other
//     change (clean.go). Tables contain checksums of every block and of the footer; damage there is
//     reported by the read or Open that reaches it.
//   - After any other end: the MANIFEST and the logs that Pebble replays are read to their ends,
//     and an intact chunk after an unreadable place proves that the place is not a torn end
//     (chunks.go). Everything recorded as durable must exist: in the attestation file
//     (attestation.go), and in the durability records of the log itself (keys.go). The journal must
//     have no gap.
//
// Open returns [storage.ErrDamaged] for a damaged store, also if the MANIFEST or the record is
// truncated or missing.
//
// Damage in a table that holds only claims is confined (damage.go): calls that need the damaged block
// return a storage.DamageError, and the store works on.
//
// # What is not checked
//
// After a kill or a power cut, no durability record covers the newest part of the log: damage there
// cannot be distinguished from a torn end, and removes the last batches. This part consists of the
// batches whose successor was not yet written when their sync was confirmed. With one batch in
// flight, it is the last batch: in a test that flipped every 5th of the 58,291 bytes of a killed
// store's log, flips in the last 964 bytes removed batch 60 of 60, and all other flips were
// reported or harmless. With n batches in flight, it is at most the last n+1. After 20 ms without
// writes, the store closes the gap: it writes a durability record to the log and the attestation to
// its file. After that, no flipped byte outside of the tables went undetected in the tests.
// TestAfterAKillUnderLoadOnlyTheLastBatchesCanBeLostToDamage and the tests next to it show the
// method. Truncation or removal of the log's file is detected up to the newest attestation, which
// is at most 20 ms old when idle, and a second old under load.
//
// The log contains the bytes of event ids. An attacker who chooses ids, knows the number of a log,
// and makes the machine crash during such a write could make a torn end look like damage, but not
// damage like a torn end.
//
// # Dropping
//
// Drop writes one synced batch with a range delete for each bucket, and a note for buckets with
// packed claims. Reclaim lets Pebble delete the tables that contain only dropped buckets, and then
// rewrites, with pauses, the tables that also contain other buckets. EstimateDiskUsage counts whole
// blocks, so for a reclaimed bucket it may report a block that belongs to an adjacent bucket. With
// 4 million claims over four weeks, the space of the oldest week was free after 0.6 s (one scope)
// and 5.1 s (200 scopes), on two busy cores:
//
//	HAPAX_DROP=4000000 go test ./engine/pebble -run TestDroppedSpaceComesBack -v
//
// # Reading on
//
// store.go puts the parts of a store together, and opens and closes it; openreader.go does so for one
// that is only read. core.go is what the parts
// share. create.go creates a store in a directory, and check.go and logcheck.go decide whether
// Pebble may open it. write.go, claims.go, journal.go, sidecars.go, drop.go and reclaim.go do the
// work of a store; buckets.go lists buckets. internal/memtable has the claims that are not in tables
// yet; packedlog.go and load.go have them on disk, and seal.go, run.go and cuts.go move them to
// tables. internal/runs finds claims in tables: index.go keeps the list of open tables (list.go, parts.go,
// group.go), which refresh.go replaces after a compaction; coverage.go says what a list without all
// tables decides, and looker.go looks a claim up in one table (table.go, filter.go). settings.go,
// scheduler.go and compactor.go have the settings of Pebble and decide when it compacts. usage.go,
// verify.go and backup.go are for operators, and damage.go knows the damaged tables. failstop.go and
// fault.go are the file system that stops at the first failed write, and dirfs.go and osfile.go what is
// below it on the machine's own file system: files that are reached by the directory, not by its
// path. ownlogs.go knows which logs Close may remove, and reserve.go keeps space for the next Open.
// names.go, keys.go, chunks.go, attestation.go, clean.go and internal/memtable/packed.go describe
// what is on disk.
//
// HAPAX_SWEEP=all makes the tests sweep every operation and more bytes.
package pebble
