// Package filters finds out without I/O which claims were certainly never made. It has a Bloom
// filter for each week and the number of claims in each bucket, keeps the filters within a budget
// of bytes, writes snapshots, and restores the filters from a snapshot and the journal of later
// batches.
//
// It knows only hashes, weeks and numbers of scopes, no events or names. A hash that is not in a
// filter was never put; a hash that may be in it must be looked up in the store.
package filters
