// Package filters tells which claims were certainly never made, without I/O: it has a Bloom filter for
// each week and the number of claims in each bucket, keeps the filters within a budget of bytes,
// writes them in snapshots, and restores them from a snapshot and the journal of the batches after it.
//
// It knows hashes, weeks and numbers of scopes only, and nothing of events and names. A hash that it
// denies was never put; one that it does not deny is looked up in the store.
package filters
