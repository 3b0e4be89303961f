package replica

import (
	"context"
	"math"
)

// A Log is a sequence of records with increasing offsets, which all members see in the same order:
// one partition of a topic. Its methods may be called concurrently.
type Log interface {
	// Topic returns the id of the topic. A topic that was deleted and created again has another one.
	Topic(ctx context.Context) ([16]byte, error)

	// Bounds returns the offset of the first record and the one after the last record, as far as it
	// is known: end may be too low for a moment, and never decides anything.
	Bounds(ctx context.Context) (start, end int64, err error)

	// Append appends a record and waits until all in-sync replicas have it. After an error, also that
	// of ctx, the record may be in the log, or get there later, once or twice. Append keeps no
	// reference to the record once it has returned without an error.
	Append(ctx context.Context, record []byte) (Ack, error)

	// Read calls fn in order for each record whose offset is at least from and less than to, and waits
	// for records that are not there yet. It returns nil when all these were read or fn has returned
	// false, ErrOutOfRange if from is not in the log, or the error of ctx. The value is valid during
	// the call only. It reads what is not yet committed by a transaction, too.
	Read(ctx context.Context, from, to int64, fn func(offset int64, value []byte) (more bool)) error
}

// An Ack is the answer to an append.
type Ack struct {
	// Offset is that of the record, or -1 if the log only knows that it has the record.
	Offset int64
	// Epoch is the epoch of the partition's leader that has answered.
	Epoch int32
}

// noEnd is the end of a read that fn ends.
const noEnd = math.MaxInt64
