// Package bolt is the [storage.Store] for small devices: one bbolt file, up to about 10 million
// claims.
//
// # What it promises
//
// A batch is one transaction of bbolt. bbolt writes new pages, syncs, writes the meta page that
// makes them count, and syncs again; Apply returns after that. So a batch is durable when Apply
// returns, a crash keeps each batch whole or not at all, and there is no log to replay: opening
// costs reading, not writing. Sync cannot be switched off.
//
// Open syncs the file before it believes it: after a kill the newest pages may have been in the
// machine's memory only.
//
// The first error of a write fails the store (ErrFailed). Panics of bbolt, and faults of the
// mapping through which it reads, are errors that wrap storage.ErrDamaged. Reads go past bbolt: a
// small reader of our own takes pages with pread, holds each of them to its layout, the order of
// its keys, its parent and its checksums, and cannot fault, recurse or go in circles, whatever the
// bytes are. Each page that a batch will change is read that way before bbolt reads it.
//
// # What is checked when
//
// bbolt has checksums on its two meta pages and nowhere else. Ours are: one on each value; a count
// and an exclusive or of the hashes of each tree's entries, kept in the same transactions; one over
// these, in a head that names its transaction (layout.go draws it).
//
//   - After a clean close, Open compares the whole file with a checksum in the file CLEAN, in one
//     pass in order and before bbolt sees it. Any flipped bit is refused. Measured: 0.2 s per
//     million claims.
//   - After an unclean end there is no CLEAN. Open reads every entry, recomputes every sum, and
//     holds that each page is either in use, once, or on the list of free ones: a page handed out
//     twice would overwrite claims. Measured: 0.5 s per million claims.
//   - Close makes that same check before it writes CLEAN, so that what went bad while the store was
//     open is not attested: 0.25 s per million claims. A store that was only read keeps the CLEAN
//     it has, and closes at once.
//   - While the store is open, each page is checked whenever it is read. An absent claim is as well
//     attested as a present one: the leaf that would hold it is checked whole, with its place among
//     the other leaves.
//
// (2 shared cores at 2.5 GHz, the file in the page cache, 500,000 claims with random ids,
// BenchmarkLifecycle.)
//
// # What stays unattested
//
//   - After an unclean end, a newest meta page that is neither valid nor one bit away from it, but
//     still has its magic, version and page size: it cannot be distinguished from the torn write of
//     a transaction that was not confirmed. bbolt falls back to the transaction before, and so one
//     confirmed batch can be missing. A single flipped bit, a page of zeros and a page of something
//     else are refused.
//   - A whole older file, with its older CLEAN, put back in place of this one.
//   - While the store is open, a pointer in a branch page that comes to name an older copy of the
//     very page it named. The check at Close, at the next Open or of Verify finds it.
//   - After a sync that failed, what the machine still shows from memory may not be on the disk,
//     and a later sync may say nothing of it. Restart the machine, or restore a backup, before you
//     trust the disk again.
//
// # Space
//
// The file never shrinks. The pages of dropped claims are used again by the next batches; Reclaim
// has nothing to do, and Usage.ReclaimableBytes is the free space. A Backup is a compacted copy.
// Each transaction writes the list of free pages, 8 bytes for each, so that much free space costs
// something until it is used again. Random ids cost a page of 4 KiB or so for each claim of a small
// batch: batches of 10,000 write a quarter of that.
//
// The file may reach Options.MaxFileBytes, and its mapping has that size from the start: so no
// batch waits for a long Scan, which would otherwise keep bbolt from mapping a larger file. While a
// Scan continues the pages that batches replace are not used again.
//
// # Files
//
//	claims.bolt         everything
//	HAPAX               identity and format; written last when a store is made
//	CLEAN               the record of a clean close; removed before the first write
//	LOCK                one writer for each directory
//	*.sidecar           what WriteSidecar was given
//	claims.bolt.new     a store being made: of no value
//	claims.bolt.backup  an unfinished backup: of no value, and not mistaken for a store
package bolt
