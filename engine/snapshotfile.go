package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crc32c"
	"github.com/hapax-dev/hapax/weekbucket"
)

type snapshot struct {
	identity storage.Identity
	seq      uint64
	counts   map[bucketRef]count
	filters  map[weekbucket.Week]*bloom.Filter
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
	return binary.BigEndian.AppendUint32(b, crc32c.Checksum(b))
}

// readSnapshot decodes a sidecar. body is the part with the filters, not yet looked at; weeks says
// whose they are.
func readSnapshotHeader(b []byte) (s *snapshot, weeks []weekbucket.Week, body []byte, err error) {
	d := decoder{rest: b}
	n := uint64(d.uint32())
	header := d.take(n)
	sum := d.uint32()
	if d.err != nil || crc32c.Checksum(b[:4+n]) != sum {
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

var errUnusable = errors.New("snapshot unusable")
