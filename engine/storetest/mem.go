package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
)

// Mem is an [storage.Store] in memory, simple enough to be obviously right. A batch is visible when
// Apply has returned and durable when its wait has; nothing is made durable earlier, except by
// Close. See [Mem.HoldSyncs], [Mem.Before], [Mem.FailAt] and [Mem.Crash] for what a test can do to
// it.
//
// A Mem panics when its caller breaks the contract: a gap in Batch.Seq, two Applies at once, waits
// out of order or called twice, a batch for a dropped bucket, a sidecar name that is not allowed, a
// call after Close.
type Mem struct {
	disk    *Disk
	dir     string
	lastSeq uint64 // found when opened

	// Guarded by disk.mu.
	image    *image
	history  history
	trimmed  uint64
	nextSeq  uint64 // that Apply must be called with
	nextWait uint64 // whose wait must be called
	reclaim  map[storage.Bucket]uint64
	dropped  map[storage.Bucket]bool
	written  uint64
	failed   error // why the store is poisoned
	closed   bool

	// For tests, guarded by disk.mu.
	calls   map[Op]int
	hooks   map[Op]func(call int) error
	busy    map[string]bool // calls that run, of those that must run one at a time
	held    bool            // syncs are held back
	permits int             // held syncs that may go
	holding int             // waits that are held back now
	changed *sync.Cond      // one of the above
}

var _ storage.Store = (*Mem)(nil)

// ErrPowerCut is what a Mem returns after [Mem.Crash].
var ErrPowerCut = errors.New("storetest: the power was cut")

// NewMem returns an empty store on a disk of its own. A zero identity is replaced by a random one.
func NewMem(identity storage.Identity) *Mem {
	m, err := NewDisk().Open("mem", identity)
	if err != nil {
		panic(err) // an empty disk refuses nothing
	}
	return m
}

// Disk returns the disk that the store is on, on which its backups can be opened.
func (m *Mem) Disk() *Disk { return m.disk }

// Identity implements [storage.Store].
func (m *Mem) Identity() storage.Identity { return m.image.identity }

// LastSeq implements [storage.Store].
func (m *Mem) LastSeq() uint64 { return m.lastSeq }

// Apply implements [storage.Store].
func (m *Mem) Apply(b *storage.Batch) (wait func() error, err error) {
	defer m.exclusive("Apply")()
	if err := m.beginWrite(OpApply); err != nil {
		return nil, err
	}
	b = cloneBatch(b)
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.checkBatch(b)
	m.nextSeq++
	m.history.apply(b)
	m.written += batchSize(b)
	return func() error { return m.confirm(b.Seq) }, nil
}

func (m *Mem) checkBatch(b *storage.Batch) {
	if b.Seq != m.nextSeq {
		panic(fmt.Sprintf("storetest: Apply of batch %d, want %d", b.Seq, m.nextSeq))
	}
	for _, w := range b.Claims {
		if bucket := bucketOf(w.Key); m.dropped[bucket] {
			panic(fmt.Sprintf("storetest: batch %d touches %v, which was dropped", b.Seq, bucket))
		}
	}
}

// confirm is the wait of batch seq.
func (m *Mem) confirm(seq uint64) error {
	hookErr := m.begin(OpWait)
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if seq != m.nextWait {
		panic(fmt.Sprintf("storetest: wait for batch %d, want %d", seq, m.nextWait))
	}
	m.nextWait++
	m.holding++
	m.changed.Broadcast()
	for m.held && m.permits == 0 && m.failed == nil {
		m.changed.Wait()
	}
	m.holding--
	m.permits = max(0, m.permits-1)
	m.changed.Broadcast()
	if m.failed == nil && hookErr != nil {
		m.failed = hookErr
	}
	if m.failed != nil {
		return m.poisoned(OpWait)
	}
	m.history.confirm(seq)
	m.history.durable.trim(m.trimmed)
	return nil
}

// Claim implements [storage.Store].
func (m *Mem) Claim(key []byte) (record []byte, found bool, err error) {
	return m.get(OpClaim, key, func(c *contents) map[string][]byte { return c.claims })
}

// State implements [storage.Store].
func (m *Mem) State(key []byte) (value []byte, found bool, err error) {
	return m.get(OpState, key, func(c *contents) map[string][]byte { return c.state })
}

func (m *Mem) get(op Op, key []byte, of func(*contents) map[string][]byte) ([]byte, bool, error) {
	if err := m.begin(op); err != nil {
		return nil, false, err
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	v, found := of(m.history.view)[string(key)]
	return bytes.Clone(v), found, nil
}

// ScanState implements [storage.Store].
func (m *Mem) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	if err := m.begin(OpScanState); err != nil {
		return err
	}
	state := m.snapshot(func(c *contents) map[string][]byte { return c.state })
	for _, k := range spanKeys(state, span) {
		if err := fn([]byte(k), bytes.Clone(state[k])); err != nil {
			return err
		}
	}
	return nil
}

// Buckets implements [storage.Store].
func (m *Mem) Buckets(fn func(storage.Bucket) error) error {
	if err := m.begin(OpBuckets); err != nil {
		return err
	}
	m.disk.mu.Lock()
	buckets := sortedBuckets(m.history.view.buckets)
	m.disk.mu.Unlock()
	for _, b := range buckets {
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// Scan implements [storage.Store].
func (m *Mem) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	if err := m.begin(OpScan); err != nil {
		return err
	}
	claims := m.snapshot(func(c *contents) map[string][]byte { return c.claims })
	started()
	for _, k := range spanKeys(claims, span) {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("storetest: scan: %w", err)
		}
		if err := fn([]byte(k), bytes.Clone(claims[k])); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (m *Mem) snapshot(of func(*contents) map[string][]byte) map[string][]byte {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return maps.Clone(of(m.history.view))
}

// Journal implements [storage.Store].
func (m *Mem) Journal(from uint64, fn func(seq uint64, entry []byte) error) error {
	if err := m.begin(OpJournal); err != nil {
		return err
	}
	m.disk.mu.Lock()
	journal := maps.Clone(m.history.view.journal)
	m.disk.mu.Unlock()
	for _, seq := range slices.Sorted(maps.Keys(journal)) {
		if seq < from {
			continue
		}
		if err := fn(seq, bytes.Clone(journal[seq])); err != nil {
			return err
		}
	}
	return nil
}

// TrimJournal implements [storage.Store]. It becomes durable with the next batch that does.
func (m *Mem) TrimJournal(below uint64) error {
	defer m.exclusive("TrimJournal")()
	if err := m.beginWrite(OpTrimJournal); err != nil {
		return err
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.trimmed = max(m.trimmed, below)
	m.history.view.trim(m.trimmed)
	return nil
}

// Drop implements [storage.Store]. One that fails has removed every other claim.
func (m *Mem) Drop(buckets []storage.Bucket) error {
	defer m.exclusive("Drop")()
	err := m.beginWrite(OpDrop)
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if err != nil {
		m.dropHalf(buckets)
		return err
	}
	for _, b := range buckets {
		m.reclaim[b] += m.history.drop([]storage.Bucket{b})
		m.dropped[b] = true
	}
	return nil
}

func (m *Mem) dropHalf(buckets []storage.Bucket) {
	if errors.Is(m.failed, ErrPowerCut) {
		return
	}
	for _, b := range buckets {
		for i, key := range sortedKeys(m.history.durable.claims, string(b.AppendPrefix(nil))) {
			if i%2 == 0 {
				gone := storage.ClaimWrite{Key: []byte(key)}
				m.history.durable.setClaim(gone)
				m.history.view.setClaim(gone)
			}
		}
	}
}

// Reclaim implements [storage.Store].
func (m *Mem) Reclaim(ctx context.Context, buckets []storage.Bucket) error {
	defer m.exclusive("Reclaim")()
	if err := m.beginWrite(OpReclaim); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("storetest: reclaim: %w", err)
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	for _, b := range buckets {
		delete(m.reclaim, b)
	}
	return nil
}

// ReclaimState implements [storage.Store]. A map keeps nothing of what was removed.
func (m *Mem) ReclaimState(ctx context.Context, _ storage.Span) error {
	defer m.exclusive("ReclaimState")()
	if err := m.beginWrite(OpReclaimState); err != nil {
		return err
	}
	return ctx.Err()
}

// Usage implements [storage.Store].
func (m *Mem) Usage() (storage.Usage, error) {
	if err := m.begin(OpUsage); err != nil {
		return storage.Usage{}, err
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	u := storage.Usage{DiskBytes: m.history.view.size(), WrittenBytes: m.written}
	for _, size := range m.reclaim {
		u.ReclaimableBytes += size
	}
	for _, content := range m.image.sidecars {
		u.DiskBytes += uint64(len(content))
	}
	u.DiskBytes += u.ReclaimableBytes
	return u, nil
}

// BucketBytes implements [storage.Store].
func (m *Mem) BucketBytes(b storage.Bucket) (uint64, error) {
	if err := m.begin(OpBucketBytes); err != nil {
		return 0, err
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.history.view.clone().drop([]storage.Bucket{b}), nil
}

// WriteSidecar implements [storage.Store].
func (m *Mem) WriteSidecar(name string, write func(io.Writer) error) error {
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		panic(fmt.Sprintf("storetest: sidecar name %q", name))
	}
	if err := m.beginWrite(OpWriteSidecar); err != nil {
		return err
	}
	var content bytes.Buffer
	if err := write(&content); err != nil {
		return fmt.Errorf("storetest: sidecar %s: %w", name, err)
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if m.failed != nil {
		return m.poisoned(OpWriteSidecar)
	}
	m.image.sidecars[name] = content.Bytes()
	m.written += uint64(content.Len())
	return nil
}

// ReadSidecar implements [storage.Store].
func (m *Mem) ReadSidecar(name string) ([]byte, error) {
	if err := m.begin(OpReadSidecar); err != nil {
		return nil, err
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	content, ok := m.image.sidecars[name]
	if !ok {
		return nil, fmt.Errorf("storetest: sidecar %s: %w", name, fs.ErrNotExist)
	}
	return append([]byte{}, content...), nil
}

// Backup implements [storage.Store]. The copy is on the same disk, sidecars included.
func (m *Mem) Backup(ctx context.Context, dir string) error {
	if err := m.begin(OpBackup); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("storetest: backup: %w", err)
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if m.failed != nil {
		return m.poisoned(OpBackup)
	}
	i := m.image.clone(m.history.view.clone())
	i.identity = i.identity.Backup()
	return m.disk.put(dir, i)
}

// Verify implements [storage.Store]. Nothing is ever wrong with a map.
func (m *Mem) Verify(ctx context.Context, report func(problem string)) error {
	if err := m.begin(OpVerify); err != nil {
		return err
	}
	return ctx.Err()
}

// Close implements [storage.Store].
func (m *Mem) Close() error {
	err := m.begin(OpClose)
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.closed = true
	if errors.Is(m.failed, ErrPowerCut) {
		return nil // the directory belongs to others now
	}
	if m.failed == nil {
		m.history.confirm(m.nextSeq)
		m.history.durable.trim(m.trimmed)
	}
	m.image.contents = m.history.durable
	m.image.open = false
	return err
}

// poisoned says why op fails. It is called with disk.mu held.
func (m *Mem) poisoned(op Op) error {
	return fmt.Errorf("storetest: %s: the store has failed: %w", op, m.failed)
}

func batchSize(b *storage.Batch) uint64 {
	n := len(b.Journal)
	for _, w := range b.Claims {
		n += len(w.Key) + len(w.Record)
	}
	for _, w := range b.State {
		n += len(w.Key) + len(w.Value)
	}
	return uint64(n)
}
