// Package bloom answers "certainly not seen", without I/O.
//
// A [Filter] is a set of 64-bit hashes that errs on one side only. A hash that was added is always
// found. One that was not is sometimes found too (at 16 bits a key about once in 1,000). So "no"
// saves a lookup in the store, and "maybe" requires one.
//
// # The caller's duty
//
// Pass hashes whose 64 bits are all well mixed, such as XXH64 of the key; the filter does not hash
// again. If senders can choose keys, seed the hash. Otherwise they can choose keys that collide.
// The high bits select the block. Code that divides keys among filters by hash must not use the
// high bits, because each filter would then use only a part of its blocks.
//
// # How it works
//
// A layer is an array of blocks of 512 bits, one cache line each. A hash selects a block, and one
// bit in each of its eight 64-bit lanes. It may have been added if all eight bits are set. Bits are
// set by atomic OR and never cleared, so no lock is needed, and a copy of the words under load is a
// valid filter.
//
// When a layer has reached the number of keys it was made for, the filter adds another layer, at
// least twice as large, in front of it. New hashes are added to the newest layer, and only if no
// layer has them; lookups check all layers. The rates of false positives add up, but few layers
// suffice: seven hold the first 11 million keys of a filter that starts at the smallest size, and
// there are never more than ten.
//
// A lookup of a key that was not added probes every layer. If Options.Expected is set, for instance
// to last week's count, there is usually one layer.
//
// # Memory
//
// On Linux, layers of 1 MiB and more are outside Go's heap, so that the garbage collector does
// not let the heap grow in proportion to them. A layer is unmapped after a garbage collection has
// found that it is no longer used. Its size does not make that collection start earlier. GOMEMLIMIT
// and the statistics of the heap do not include them; [Filter.Bytes] does.
//
// # Sources
//
// Blocks of one cache line: F. Putze, P. Sanders, J. Singler, "Cache-, Hash-
// and Space-Efficient Bloom Filters", Journal of Experimental Algorithmics 14
// (2009). One bit a lane, chosen by multiply-shift, and the eight constants:
// the split-block Bloom filter of Apache Parquet,
// https://parquet.apache.org/docs/file-format/bloomfilter/, there with lanes
// of 32 bits. Chains of growing layers: P. S. Almeida, C. Baquero, N.
// Preguiça, D. Hutchison, "Scalable Bloom Filters", Information Processing
// Letters 101 (2007); unlike theirs, ours spend the same bits a key in every
// layer.
package bloom
