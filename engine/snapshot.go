package engine

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A snapshot keeps the filters and counts as of one batch, so that opening does not scan the
// claims. Two are kept, in sidecars that are written in turn, and the journal of the batches after
// the older one. The layout of a sidecar, numbers big endian:
//
//	+-----------+--------+----------------------+----------------------------------------+
//	| header len| header | CRC-32C of len+header| one bloom snapshot for each week listed |
//	| 4         |        | 4                    |                                        |
//	+-----------+--------+----------------------+----------------------------------------+
//
//	header: HXSCREEN | version u32 | uuid 16 | incarnation u64 | seq u64
//	        | number of counts uvarint | { scope uvarint, week 4, claims uvarint, xor u64 } ...
//	        | number of weeks uvarint  | { week 4 } ...
//
// A bloom snapshot has its own checksum. Anything that does not fit makes the whole sidecar
// unusable: it is then as if it were not there.
const (
	snapshotMagic   = "HXSCREEN"
	snapshotVersion = 1

	snapshotFraction = 4 // at least total/4 claims between two
)

var snapshotNames = [2]string{"screen-0", "screen-1"}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errUnusable = errors.New("snapshot unusable")

type snapshot struct {
	identity storage.Identity
	seq      uint64
	counts   map[bucketRef]count
	filters  map[weekbucket.Week]*bloom.Filter
}

// snapshots remembers what is in the two sidecars.
type snapshots struct {
	mu      sync.Mutex // guards all below; no I/O under it
	running bool
	seqs    [2]uint64 // by sidecar, 0 = unusable
	lastErr error     // of the last snapshot, nil if it was written
	failed  uint64

	retryAt atomic.Int64 // after a failure: when to try again, in Unix nanoseconds; else 0
}

// maybeSnapshot begins a snapshot if it is time. The committer calls it after a batch was applied.
func (e *Engine) maybeSnapshot() {
	due := e.sinceSnap >= max(e.opt.snapshotEvery, e.screen.claims/snapshotFraction) || e.snaps.retryDue()
	if !due || !e.screen.trusted.Load() || e.Err() != nil {
		return
	}
	if !e.snaps.begin() {
		return
	}
	e.sinceSnap = 0
	s := e.cut()
	e.goBehind(func(context.Context) { e.saveSnapshot(s) })
}

func (s *snapshots) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		return false
	}
	s.running = true
	return true
}

// retryDue reports whether it is time to repeat a snapshot that could not be written.
func (s *snapshots) retryDue() bool {
	at := s.retryAt.Load()
	return at != 0 && time.Now().UnixNano() >= at
}

// failures returns how many snapshots could not be written, and why the last one could not, nil if
// it was.
func (s *snapshots) failures() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed, s.lastErr
}

// newest is the last batch that a snapshot on disk knows.
func (s *snapshots) newest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.seqs[0], s.seqs[1])
}

// cut takes the counts as of the last batch. The filters may get more hashes meanwhile: a filter
// that knows too much is still right.
func (e *Engine) cut() *snapshot {
	return &snapshot{
		identity: e.store.Identity(), seq: e.seq,
		counts: e.screen.copyCounts(), filters: *e.screen.filters.Load(),
	}
}

// saveSnapshot writes a snapshot once what it knows is durable, so that no snapshot is ever ahead
// of its store, and trims the journal. A failure costs disk space and time at the next open,
// nothing else: it is counted, the older snapshot and the journal after it stay, and a batch that
// comes after snapshotRetry begins another snapshot.
func (e *Engine) saveSnapshot(s *snapshot) {
	err := errors.New("the store failed")
	if e.durable.wait(s.seq) {
		err = e.writeSnapshot(s)
	}
	e.snaps.mu.Lock()
	defer e.snaps.mu.Unlock()
	e.snaps.running = false
	e.snaps.lastErr = err
	e.snaps.retryAt.Store(0)
	if err != nil {
		e.snaps.failed++
		e.snaps.retryAt.Store(time.Now().Add(e.opt.snapshotRetry).UnixNano())
	}
}

func (e *Engine) writeSnapshot(s *snapshot) error {
	e.snaps.mu.Lock()
	slot := 0
	if e.snaps.seqs[1] < e.snaps.seqs[0] {
		slot = 1
	}
	kept := e.snaps.seqs[1-slot]
	e.snaps.mu.Unlock()
	if err := e.store.WriteSidecar(snapshotNames[slot], s.write); err != nil {
		return err
	}
	e.snaps.mu.Lock()
	e.snaps.seqs[slot] = s.seq
	e.snaps.mu.Unlock()
	if kept == 0 {
		return nil
	}
	return e.store.TrimJournal(kept + 1)
}

func (s *snapshot) write(w io.Writer) error {
	weeks := slices.Sorted(maps.Keys(s.filters))
	if _, err := w.Write(s.header(weeks)); err != nil {
		return err
	}
	var buf []byte
	for _, week := range weeks {
		buf = s.filters[week].AppendSnapshot(buf[:0])
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

func (s *snapshot) header(weeks []weekbucket.Week) []byte {
	b := make([]byte, 4, 4+64+len(s.counts)*24+len(weeks)*weekbucket.KeySize)
	b = append(b, snapshotMagic...)
	b = binary.BigEndian.AppendUint32(b, snapshotVersion)
	b = append(b, s.identity.UUID[:]...)
	b = binary.BigEndian.AppendUint64(b, s.identity.Incarnation)
	b = binary.BigEndian.AppendUint64(b, s.seq)
	b = binary.AppendUvarint(b, uint64(len(s.counts)))
	for ref, c := range s.counts {
		b = binary.AppendUvarint(b, ref.scope)
		b = ref.week.AppendKey(b)
		b = binary.AppendUvarint(b, c.claims)
		b = binary.BigEndian.AppendUint64(b, c.xor)
	}
	b = binary.AppendUvarint(b, uint64(len(weeks)))
	for _, week := range weeks {
		b = week.AppendKey(b)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// readSnapshot decodes a sidecar. body is the part with the filters, not yet looked at; weeks says
// whose they are.
func readSnapshotHeader(b []byte) (s *snapshot, weeks []weekbucket.Week, body []byte, err error) {
	d := decoder{rest: b}
	n := uint64(d.uint32())
	header := d.take(n)
	sum := d.uint32()
	if d.err != nil || crc32.Checksum(b[:4+n], castagnoli) != sum {
		return nil, nil, nil, fmt.Errorf("%w: header torn or damaged", errUnusable)
	}
	body = d.rest
	d = decoder{rest: header}
	if string(d.take(uint64(len(snapshotMagic)))) != snapshotMagic || d.uint32() != snapshotVersion {
		return nil, nil, nil, fmt.Errorf("%w: of another kind or version", errUnusable)
	}
	s = &snapshot{}
	copy(s.identity.UUID[:], d.take(16))
	s.identity.Incarnation = d.uint64()
	s.seq = d.uint64()
	s.counts = make(map[bucketRef]count)
	for range d.count(1 + weekbucket.KeySize + 1 + 8) {
		ref := bucketRef{scope: d.uvarint()}
		ref.week = d.week()
		s.counts[ref] = count{claims: d.uvarint(), xor: d.uint64()}
	}
	for range d.count(weekbucket.KeySize) {
		weeks = append(weeks, d.week())
	}
	if d.err != nil || len(d.rest) != 0 {
		return nil, nil, nil, fmt.Errorf("%w: header malformed", errUnusable)
	}
	return s, weeks, body, nil
}

func (s *snapshot) readFilters(weeks []weekbucket.Week, body []byte) error {
	s.filters = make(map[weekbucket.Week]*bloom.Filter, len(weeks))
	for _, week := range weeks {
		f, rest, err := bloom.Open(body)
		if err != nil {
			return fmt.Errorf("%w: filter of %s: %w", errUnusable, week, err)
		}
		s.filters[week], body = f, rest
	}
	if len(body) != 0 {
		return fmt.Errorf("%w: %d bytes too many", errUnusable, len(body))
	}
	return nil
}

// loadSnapshot returns the newest usable snapshot of this store from which the journal continues to
// the last batch; nil if there is none. first is the first batch that the journal still has, 0 for
// none. A snapshot that is ahead of the store proves that the store has lost acknowledged batches.
func (e *Engine) loadSnapshot(first uint64) (*snapshot, error) {
	type candidate struct {
		*snapshot
		slot  int
		weeks []weekbucket.Week
		body  []byte
	}
	var found []candidate
	for slot, name := range snapshotNames {
		b, err := e.store.ReadSidecar(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s, weeks, body, err := readSnapshotHeader(b)
		if err != nil || s.identity.UUID != e.store.Identity().UUID || s.identity.Incarnation != e.store.Identity().Incarnation {
			continue
		}
		if last := e.store.LastSeq(); s.seq > last {
			return nil, fmt.Errorf("%w: it ends with batch %d, but batch %d was durable", storage.ErrDamaged, last, s.seq)
		}
		found = append(found, candidate{s, slot, weeks, body})
	}
	slices.SortFunc(found, func(a, b candidate) int { return cmp.Compare(b.seq, a.seq) })
	var newest *snapshot
	for _, c := range found {
		if c.seq < e.store.LastSeq() && (first == 0 || first > c.seq+1) {
			continue
		}
		if c.readFilters(c.weeks, c.body) != nil {
			continue
		}
		e.snaps.seqs[c.slot] = c.seq
		if newest == nil {
			newest = c.snapshot
		}
	}
	return newest, nil
}
