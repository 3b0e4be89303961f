package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
)

// Mem is a [storage.Store] in memory, simple enough to be obviously correct. A batch is visible
// when Apply has returned and durable when its wait has returned. Only Close makes batches durable
// earlier. [Mem.HoldSyncs], [Mem.Before], [Mem.FailAt] and [Mem.Crash] are for tests.
//
// A Mem panics when its caller breaks the contract: a gap in Batch.Seq, two concurrent Applies,
// waits out of order or called twice, a batch for a dropped bucket, an invalid sidecar name, a call
// after Close.
type Mem struct {
	storage.OneEngine
	*memory
	syncs
	memReader
	memWriter
	memSidecars
	lastSeq uint64 // found when opened
}

var _ storage.Store = (*Mem)(nil)

// NewMem returns an empty store on a new disk. A zero identity is replaced by a random one.
func NewMem(identity storage.Identity) *Mem {
	m, err := NewDisk().Open("mem", identity)
	if err != nil {
		panic(err) // an empty disk rejects nothing
	}
	return m
}

// Open opens the store in dir. If there is none, it creates one with the given identity, or with a
// random identity if that is zero. It fails with storage.ErrLocked while another Mem has dir open.
func (d *Disk) Open(dir string, identity storage.Identity) (*Mem, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.dirs[dir]
	switch {
	case i == nil:
		if identity == (storage.Identity{}) {
			identity = storage.NewIdentity()
		}
		i = &image{identity: identity, contents: newContents(), sidecars: map[string][]byte{}}
		d.dirs[dir] = i
	case i.open:
		return nil, fmt.Errorf("storetest: opening %s: %w", dir, storage.ErrLocked)
	case i.newer:
		return nil, fmt.Errorf("storetest: opening %s: %w", dir, storage.ErrNewerFormat)
	}
	i.open = true
	m := newMemory(d, dir, i)
	return &Mem{
		memory: m, syncs: syncs{m}, memReader: memReader{m}, memWriter: memWriter{syncs{m}}, memSidecars: memSidecars{m},
		lastSeq: i.contents.lastSeq,
	}, nil
}

func (d *Disk) mustOpen(dir string) *Mem {
	m, err := d.Open(dir, storage.NewIdentity())
	if err != nil {
		panic(err) // it is not open: it was just made
	}
	return m
}

// Disk returns the store's disk, on which its backups can be opened.
func (m *Mem) Disk() *Disk { return m.disk }

// Identity implements [storage.Store].
func (m *Mem) Identity() storage.Identity { return m.image.identity }

// LastSeq implements [storage.Store].
func (m *Mem) LastSeq() uint64 { return m.lastSeq }

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

// Verify implements [storage.Store]. A map has no errors.
func (m *Mem) Verify(ctx context.Context, report func(problem string)) error {
	if err := m.begin(OpVerify); err != nil {
		return err
	}
	return ctx.Err()
}

// Close implements [storage.Store].
func (m *Mem) Close() error {
	m.Retire()
	if m.isClosed() {
		return nil
	}
	err := m.begin(OpClose)
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.closed = true
	if errors.Is(m.failed, ErrPowerCut) {
		return nil // the directory now belongs to another store
	}
	if m.failed == nil {
		m.history.confirm(m.nextSeq)
		m.history.durable.trim(m.trimmed)
	}
	m.image.contents = m.history.durable
	m.image.open = false
	return err
}

func (m *Mem) isClosed() bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.closed
}

// Crash cuts the power: only what is durable survives. It returns the store that is then in the
// same directory; m fails every call with ErrPowerCut.
func (m *Mem) Crash() *Mem {
	m.disk.mu.Lock()
	m.poison(ErrPowerCut)
	after := m.image.clone(m.history.survivors(0))
	m.disk.dirs[m.dir] = after
	m.disk.mu.Unlock()
	return m.disk.mustOpen(m.dir)
}

// CrashClone returns, on a new disk, the store that a power failure at this moment would leave if
// the first keepUnsynced of the batches that are not durable survive. m continues.
func (m *Mem) CrashClone(keepUnsynced int) *Mem {
	disk := NewDisk()
	disk.dirs[m.dir] = m.crashImage(keepUnsynced)
	return disk.mustOpen(m.dir)
}

func (m *Mem) crashImage(keepUnsynced int) *image {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.image.clone(m.history.survivors(keepUnsynced))
}
