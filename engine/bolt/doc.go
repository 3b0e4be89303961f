// Package bolt is the [storage.Store] for small devices: one bbolt file, up to about 10 million
// claims.
//
// # Guarantees
//
// A batch is one transaction of bbolt. bbolt writes new pages, syncs, writes the meta page that
// activates them, and syncs again; then Apply returns. So a batch is durable when Apply returns,
// and after a crash each batch is stored whole or not at all. There is no log to replay: opening
// reads but does not write. Syncing cannot be disabled.
//
// Open syncs the file before it uses it, because after a kill the newest pages may be only in the
// page cache.
//
// The first error of a write fails the store (ErrFailed). Panics of bbolt, and faults of the
// mapping through which it reads, become errors that wrap storage.ErrDamaged. Reads do not use
// bbolt: internal/pages reads each page with pread and checks its layout, order of keys, parent and
// checksums. It cannot fault, recurse or loop, whatever the bytes are. Before bbolt reads a page
// that a batch will change, the page is checked in the same way, as are the pages that bbolt may
// merge after removals.
//
// # When data is checked
//
// bbolt has checksums only on its two meta pages. This package adds a checksum to each value, and
// stores for each tree the number of its entries and the exclusive or of their hashes, updated in
// the same transactions. A head with the transaction's number has a checksum of these (see
// layout.go).
//
//   - After a clean close, Open compares the whole file with a checksum in the file CLEAN, in one
//     sequential pass, before bbolt reads it. Any flipped bit is detected. Measured: 0.2 s per
//     million claims.
//   - After a crash, there is no CLEAN. Open reads every entry, recomputes every sum, and checks
//     that each page is either used once or on the list of free pages, because a page allocated
//     twice would overwrite claims. Measured: 0.5 s per million claims.
//   - Close does the same check before it writes CLEAN, so that CLEAN never confirms data that was
//     damaged while the store was open: 0.25 s per million claims. A store that was only read keeps
//     its CLEAN and closes at once.
//   - While the store is open, each page is checked whenever it is read. This also covers absent
//     claims: the leaf that would contain the claim is checked completely, including its position
//     among the other leaves.
//
// (2 shared cores at 2.5 GHz, the file in the page cache, 500,000 claims with random ids,
// BenchmarkLifecycle.)
//
// # What is not detected
//
//   - After a crash, an invalid newest meta page that still has its magic number, version and page
//     size, and differs from a valid one in more than one bit. It cannot be distinguished from a
//     torn write of an unconfirmed transaction. bbolt falls back to the previous transaction, so
//     one confirmed batch can be missing. A single flipped bit, a page of zeros and a page with
//     other contents are detected.
//   - Replacing the file and CLEAN with older copies.
//   - While the store is open, a damaged pointer in a branch page that refers to an older copy of
//     the same page. The checks of Close, of the next Open and of Verify detect it.
//   - After a failed sync, the operating system may return cached data that is not on the disk, and
//     a later sync may still succeed. Restart the machine, or restore a backup, before you trust
//     the disk again.
//
// # Space
//
// The file never shrinks. Later batches reuse the pages of dropped claims; Reclaim does nothing,
// and Usage.ReclaimableBytes is the free space. A Backup is a compacted copy. Each transaction
// writes the list of free pages, 8 bytes per page, so a lot of free space slows transactions down
// until it is reused. With random ids, a small batch writes about one page of 4 KiB for each claim;
// batches of 10,000 write a quarter of that.
//
// The file can grow to Options.MaxFileBytes, and its mapping has that size from the start.
// Otherwise, a batch that needs a larger mapping would have to wait for the end of a long Scan.
// During a Scan, replaced pages are not reused.
//
// # Files
//
//	claims.bolt         everything
//	HAPAX               identity and format; written last when a store is made
//	CLEAN               the record of a clean close; removed before the first write
//	LOCK                one writer for each directory (package storedir)
//	*.sidecar           files written by WriteSidecar
//	claims.bolt.new     a store being created; ignored
//	claims.bolt.backup  an unfinished backup; never opened as a store
//
// # Reading on
//
// store.go connects the parts of a store, and opens and closes it; openreader.go does so for one that is
// only read. core.go has what the parts
// share. create.go creates a store in a directory. write.go, claims.go, read.go, journal.go,
// sidecars.go and drop.go implement the calls of the engine; writetx.go is one transaction that
// changes the file. usage.go, verify.go, check.go and backup.go are for operations. Package
// internal/pages reads and checks trees of pages without bbolt; readtx.go and scan.go define the
// trees. names.go, layout.go, clean.go and internal/pages describe what is on disk.
package bolt
