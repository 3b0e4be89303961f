// Package replica keeps a store in a log that several processes may read and append to, such as a
// partition of a Kafka topic. The log is the truth: each batch is appended to it first, and the
// store in a local directory is a copy that may be old, damaged or lost.
//
// [Open] makes this process the owner of the log and returns a [Store], which an engine uses like
// any other. Another Open, in any process, takes the log over; the former owner then gets
// [ErrFenced] from its next write. No lease, clock or lock decides this, only the order of the
// records: a batch counts if it has the token of the newest open record before it. [Follow] keeps a
// copy up to date and never writes to the log.
//
// What an engine has answered is never undone as long as the log keeps the records that it has
// acknowledged. Calls that write nothing may be stale in a process that has lost the log without
// having noticed it.
//
// The [Log] is implemented by its caller. [Memory] is one for tests. docs/format.md describes the
// records.
package replica
