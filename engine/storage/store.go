package storage

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"time"
)

// A Store stores batches and reads them back. The engine decides; a store maps one batch to one
// durable commit.
//
// Concurrency: Apply is called by one goroutine at a time, and so is each of Drop, TrimJournal,
// Reclaim and ReclaimState. These run concurrently with each other and must not delay Apply for
// long. All other methods may be called at any time from any number of goroutines. Close is called
// when no other call is in progress. After Close, only Acquire and Close are called; a second Close
// does nothing.
//
// Errors: a store never ends the process. After a failed write or sync it has failed permanently:
// that call, every wait for an earlier batch that is not yet durable, and every later call that
// writes return an error that wraps the cause. Damaged bytes cause an error that wraps ErrDamaged,
// never a missing or wrong value. The store documents what it checks at Open and at each read. It
// returns a *DamageError if only claims are unreadable and it knows which. After any other error
// the engine stops. Claim returns a *DamageError for a key that may be in the damage, Buckets after
// calling fn for all other buckets, Scan when it reaches the damage; Apply and Drop never return
// one.
type Store interface {
	Reader

	// Acquire is called by an engine before any other method, and Release if the engine could not
	// be opened. Between the two, and after Close, Acquire returns ErrInUse, because batches of two
	// engines would have the same numbers. OneEngine implements both.
	Acquire() error
	Release()

	// LastSeq returns Batch.Seq of the newest batch at Open, 0 if there was none. All batches up to
	// it are durable when the store's Open returns.
	LastSeq() uint64

	// Apply makes the whole batch visible to every read that starts after it returns, and starts to
	// make it durable. wait blocks until the batch and all earlier ones would survive a power cut,
	// or the store has failed. It is called exactly once for each batch, in the order of batches,
	// by one goroutine, which need not be the caller of Apply. After a crash, the store has a
	// prefix of the batches, each whole, which includes all batches that a wait has confirmed.
	// Apply keeps no reference to the batch or its bytes after it has returned.
	Apply(b *Batch) (wait func() error, err error)

	// Journal calls fn with Batch.Journal of each batch whose Seq is at least from and whose
	// journal entry is stored, in the order of Seq. The slice is valid only during the call of fn.
	Journal(from uint64, fn func(seq uint64, entry []byte) error) error

	// TrimJournal allows the store to remove the journal entries of batches whose Seq is less than
	// below. It need not be durable on return. A later call with a smaller number does not undo it.
	TrimJournal(below uint64) error

	// Drop removes all claims of the given buckets, if possible at a cost that does not depend on
	// their number. On return, none of them is visible, and the removal is durable. No batch with
	// claims in these buckets is applied after Drop is called. After a crash during Drop, any of
	// the claims may exist, and Drop is called again.
	Drop(buckets []Bucket) error

	// Reclaim frees the disk space of dropped buckets, as far as the store can, without delaying
	// Apply for long. The engine calls it in the background. It returns when the space is free or
	// ctx is done, and may be called again for the same buckets.
	Reclaim(ctx context.Context, buckets []Bucket) error

	// ReclaimState frees the disk space of removed or replaced values in the span, as far as the
	// store can, without delaying Apply for long. It returns when that is done, or ctx ends.
	ReclaimState(ctx context.Context, span Span) error

	// WriteSidecar replaces a small named file next to the data, atomically and durably: after a
	// crash it has the old or the new content. If the new content does not fit on the disk, the old
	// content remains, WriteSidecar returns the cause, and the store continues to work. ReadSidecar
	// calls read with the content and its size, without loading all of it into memory. It returns
	// fs.ErrNotExist if there is none, an error of the disk, or that of read, which may be wrapped.
	// The content has its own checksum. Names consist of a-z, 0-9 and '-'.
	WriteSidecar(name string, write func(io.Writer) error) error
	ReadSidecar(name string, read func(r io.Reader, size int64) error) error

	// Backup writes a consistent, durable copy of the store, as of some moment during the call, to
	// dir, which must not exist. The copy can be opened like the original, and its Identity has a
	// higher Incarnation.
	Backup(ctx context.Context, dir string) error

	// Close, of Reader, waits for background work, flushes, and records that the close was clean. It
	// may also be called on a store that has failed; then it writes no such record.
}

// A Reader is the part of a store that reads it. The readers that pebble.OpenReader and
// bolt.OpenReader return change no byte of a store that no process has open. Damaged bytes cause the
// errors that Store describes.
type Reader interface {
	// Identity returns the identity with which the store was created. It never changes while the
	// store is open.
	Identity() Identity

	// Claim returns the record of exactly this key; found is false if there is none. The caller
	// owns the record.
	Claim(key []byte) (record []byte, found bool, err error)

	// State returns the value of exactly this key. The caller owns the value.
	State(key []byte) (value []byte, found bool, err error)

	// ScanState calls fn in key order for each key in the span and its value, as of one moment
	// during the call. If fn returns an error, ScanState stops and returns it. It seeks to the
	// first key, so its cost does not depend on the number of keys outside the span. fn may call
	// the store, and batches may be applied meanwhile. The slices are valid only during the call of
	// fn.
	ScanState(span Span, fn func(key, value []byte) error) error

	// Buckets calls fn for each bucket with at least one claim, in key order. It costs about one
	// seek per bucket, not a scan of the claims.
	Buckets(fn func(Bucket) error) error

	// Scan calls fn for each claim whose key is in the span, in key order, as of the moment at
	// which it calls started. It reads nothing before that. Afterwards, batches may be applied
	// while the scan continues. It stops when ctx ends. The slices are valid only during the call
	// of fn.
	Scan(ctx context.Context, span Span, started func(), fn func(key, record []byte) error) error

	// Usage returns the store's sizes. BucketBytes estimates the bytes on disk of one bucket's
	// claims. The error is large for small buckets, which share pages or blocks with others.
	Usage() (Usage, error)
	BucketBytes(b Bucket) (uint64, error)

	// Verify reads the whole store and checks it against the store's own checksums. It calls report
	// for each error and continues where it can.
	Verify(ctx context.Context, report func(problem string)) error

	// Close releases the directory.
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
	// UUID is chosen at random when the store is created. Backups have the same UUID.
	UUID [16]byte
	// Incarnation is higher in a backup than in the store from which it was copied.
	Incarnation uint64
	// Seed is the seed of the hashes of claims. It never changes, and is random so that nobody can
	// choose ids whose hashes collide.
	Seed uint64
}

// NewIdentity returns the identity of a new store.
func NewIdentity() Identity {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never returns an error
	id := Identity{Incarnation: 1, Seed: binary.BigEndian.Uint64(b[16:])}
	copy(id.UUID[:], b[:])
	id.UUID[6] = id.UUID[6]&0x0F | 0x40 // version 4
	id.UUID[8] = id.UUID[8]&0x3F | 0x80
	return id
}

// Backup returns the identity of a new backup. Its incarnation is higher, and different for each
// backup, because copies of one store may diverge.
func (id Identity) Backup() Identity {
	id.Incarnation = max(id.Incarnation+1, uint64(time.Now().UnixNano()))
	return id
}

// A Batch is applied whole or not at all. Within a batch, later writes take precedence. A batch
// contains values, not changes of values (for an Add, it has the sum), so that applying it twice
// has the same result as once.
type Batch struct {
	// Seq numbers the batches of a store: 1, 2, 3, ... without a gap.
	Seq uint64
	// Claims are the claims to put or remove.
	Claims []ClaimWrite
	// State has the keys to put or remove together with the claims.
	State []StateWrite
	// Journal is stored until TrimJournal, even if it is empty. It encodes which claims were put
	// and removed; a store does not interpret it.
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
	// but without files that only reserve space.
	DiskBytes uint64
	// ReclaimableBytes is the estimated size of dropped buckets whose space is not free yet.
	ReclaimableBytes uint64
	// WrittenBytes is the number of bytes written to files since the store was opened: log, tables,
	// compactions, sidecars.
	WrittenBytes uint64
	// Damaged has the damaged parts that reads have met since the store was opened and that still
	// exist.
	Damaged []Damage
	// WithoutReserve means that the disk lacks the free space that Open reserves, so the store
	// accepts only drops and removals.
	WithoutReserve bool
}
