package storage

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"time"
)

// A Store stores the batches that it is given and reads them back. The engine decides; a store maps
// one batch to one durable commit.
//
// Concurrency: Apply is called by one goroutine at a time; so are Drop, TrimJournal, Reclaim and
// ReclaimState, each. They run concurrently and must not delay Apply for long. All other methods
// are called from any number of goroutines, also while those run. Close is called when no other
// call is in progress. After Close, only Acquire and Close are called, and Close then changes
// nothing.
//
// Errors: a store never ends the process. After a failed write or sync it has failed permanently:
// that call, every wait for an earlier batch that is not yet durable, and every later call that
// writes return an error that wraps the cause. Damaged bytes cause an error that wraps ErrDamaged,
// never a missing or wrong value. The store documents what it checks when it is opened, and what it
// checks at each read. It returns a *DamageError if only claims cannot be read and it knows which.
// Otherwise it returns another error, after which the engine stops. Claim returns it for a key that
// may be in the damage, Buckets after it has called fn for all other buckets, Scan where it meets
// the damage; Apply and Drop never do.
type Store interface {
	// Acquire is called by an engine before any other method, and Release if the engine could not be
	// opened. Between the two, and after Close, Acquire returns ErrInUse: batches of two engines
	// would have the same numbers. OneEngine implements both.
	Acquire() error
	Release()

	// Identity returns the identity with which the store was created. It never changes while the
	// store is open.
	Identity() Identity

	// LastSeq returns Batch.Seq of the newest batch that was found when the store was opened, 0 if
	// there was none. Everything up to it was durable when the store's Open returned.
	LastSeq() uint64

	// Apply makes the whole batch visible to every read that starts after it returns, and starts to
	// make it durable. wait blocks until the batch and all batches before it would survive a power
	// cut, or the store has failed; it is called exactly once for each batch, in the order of the
	// batches, by one goroutine that need not be the caller of Apply. A crash keeps a prefix of the
	// batches, each whole or not at all, which contains all batches that a wait has confirmed.
	// Apply keeps no reference to the batch or its bytes after it has returned.
	Apply(b *Batch) (wait func() error, err error)

	// Claim returns the record of exactly this key; found is false if there is none. The record is
	// the caller's own copy.
	Claim(key []byte) (record []byte, found bool, err error)

	// State returns the value of exactly this key, as a copy.
	State(key []byte) (value []byte, found bool, err error)

	// ScanState calls fn in key order for each state whose key is in the span, as of one moment
	// during the call. If fn returns an error, ScanState stops and returns it. It seeks to the
	// first key: its cost does not grow with the number of keys outside the span. fn may call the
	// store, and batches may be applied meanwhile. The slices are valid during the call only.
	ScanState(span Span, fn func(key, value []byte) error) error

	// Buckets calls fn for each bucket with at least one claim, in key order. It costs about one
	// seek for each bucket, not a scan of the claims.
	Buckets(fn func(Bucket) error) error

	// Scan calls fn for each claim whose key is in the span, in key order, as of the moment of its
	// call to started. It reads nothing before that call. After it, batches may be applied while
	// the scan continues. It stops with ctx. The slices are valid during the call only.
	Scan(ctx context.Context, span Span, started func(), fn func(key, record []byte) error) error

	// Journal calls fn with Batch.Journal of each stored batch whose Seq is at least from, in the
	// order of Seq. The slice is valid during the call only.
	Journal(from uint64, fn func(seq uint64, entry []byte) error) error

	// TrimJournal lets the store remove the journal entries of batches whose Seq is lower than
	// below. It need not be durable on return, and a later call with a smaller number never undoes
	// it.
	TrimJournal(below uint64) error

	// Drop removes all claims of the given buckets, if possible at a cost that does not grow with
	// their number. On return, none of them is visible and the removal is durable. No batch with
	// claims in these buckets is applied after Drop was called. After a crash during Drop, any of
	// the claims may exist, and Drop is called again.
	Drop(buckets []Bucket) error

	// Reclaim frees the disk space of dropped buckets, as far as the store can, without delaying
	// Apply for long. It runs in the background, returns when the space is free or ctx is done, and
	// may be called again for the same buckets.
	Reclaim(ctx context.Context, buckets []Bucket) error

	// ReclaimState frees the disk space of removed or replaced states in the span, as far as the
	// store can, without delaying Apply for long. It returns when that is done or ctx is done.
	ReclaimState(ctx context.Context, span Span) error

	// Usage returns the store's sizes. BucketBytes estimates the bytes on disk of one bucket's
	// claims. The error is large for small buckets, which share pages or blocks with others.
	Usage() (Usage, error)
	BucketBytes(b Bucket) (uint64, error)

	// WriteSidecar replaces a small named file next to the data, atomically and durably: after a
	// crash it holds either the old or the new bytes. If it does not fit on the disk, the old bytes
	// remain, WriteSidecar returns the cause, and the store continues to work. ReadSidecar calls read
	// with the content and its size, without holding all of it in memory; it returns fs.ErrNotExist
	// if there is none, an error of the disk, or that of read, which may be wrapped. The content
	// has its own checksum. Names are made of a-z, 0-9 and '-'.
	WriteSidecar(name string, write func(io.Writer) error) error
	ReadSidecar(name string, read func(r io.Reader, size int64) error) error

	// Backup writes a consistent, durable copy of the store, as of some moment during the call, to
	// dir, which must not exist. It can be opened like the original and has an Identity with a
	// higher Incarnation.
	Backup(ctx context.Context, dir string) error

	// Verify reads the whole store and checks it against the store's own checksums. It calls report
	// for each error and continues where it can.
	Verify(ctx context.Context, report func(problem string)) error

	// Close waits for background work, flushes, leaves a record that the close was clean and
	// releases the directory. It may be called on a store that has failed, and then leaves no such
	// record.
	Close() error
}

// A Span selects the keys that begin with Prefix and are not less than From. The zero Span selects
// all keys.
type Span struct {
	Prefix []byte
	From   []byte
}

// Start returns the least possible key of the span.
func (s Span) Start() []byte {
	if bytes.Compare(s.From, s.Prefix) > 0 {
		return s.From
	}
	return s.Prefix
}

// Holds reports whether key is in the span.
func (s Span) Holds(key []byte) bool {
	return bytes.HasPrefix(key, s.Prefix) && bytes.Compare(key, s.From) >= 0
}

// An Identity distinguishes one store from another.
type Identity struct {
	// UUID is random, made when the store was created, and kept by its backups.
	UUID [16]byte
	// Incarnation is higher in a backup than in the store it was copied from.
	Incarnation uint64
	// Seed keys the hashes of claims. It never changes, and is random so that ids cannot be chosen
	// to collide.
	Seed uint64
}

// NewIdentity returns the identity of a store that is created now.
func NewIdentity() Identity {
	var b [24]byte
	_, _ = rand.Read(b[:]) // it never returns an error
	id := Identity{Incarnation: 1, Seed: binary.BigEndian.Uint64(b[16:])}
	copy(id.UUID[:], b[:])
	id.UUID[6] = id.UUID[6]&0x0F | 0x40 // version 4
	id.UUID[8] = id.UUID[8]&0x3F | 0x80
	return id
}

// Backup returns the identity of a backup that is made now. Its incarnation is higher. It differs
// for each backup, because copies of one store may diverge.
func (id Identity) Backup() Identity {
	id.Incarnation = max(id.Incarnation+1, uint64(time.Now().UnixNano()))
	return id
}

// A Batch is applied whole or not at all. Within a batch, later writes take precedence. It contains
// values, never changes to values (Tx.Add puts the sum), so that applying a batch twice has the
// same result as once.
type Batch struct {
	// Seq numbers the batches of a store: 1, 2, 3, ... without a gap.
	Seq uint64
	// Claims are put, or removed, under their keys.
	Claims []ClaimWrite
	// State is put, or removed, with the claims.
	State []StateWrite
	// Journal is kept until TrimJournal, even if it is empty. The engine encodes in it which claims
	// were put and removed; a store does not interpret it.
	Journal []byte
	// Control is set for the engine's internal batches, such as those that drop weeks. A store that
	// is short of space may apply these while it refuses other batches; a store may ignore Control.
	Control bool
}

// A ClaimWrite puts a claim's record, or removes the claim if Record is nil.
type ClaimWrite struct {
	Key    []byte
	Record []byte
}

// A StateWrite puts a value, or removes the key if Value is nil. An empty value that is not nil is
// a value.
type StateWrite struct {
	Key   []byte
	Value []byte
}

// Usage has the sizes of a store.
type Usage struct {
	// DiskBytes is the size of all files, including sidecars and files that are not deleted yet,
	// without files that only keep space free.
	DiskBytes uint64
	// ReclaimableBytes estimates the part that belongs to dropped buckets and is not free yet.
	ReclaimableBytes uint64
	// WrittenBytes is what was written to files since the store was opened: log, tables, rewriting,
	// sidecars.
	WrittenBytes uint64
	// Damaged are the damaged parts that reads have met since the store was opened and that are still
	// there.
	Damaged []Damage
	// WithoutReserve reports that the disk is too full for the space that Open needs, so that the store
	// accepts drops and removals only.
	WithoutReserve bool
}
