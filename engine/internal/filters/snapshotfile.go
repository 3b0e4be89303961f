package filters

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
	"github.com/hapax-dev/hapax/internal/decode"
	"github.com/hapax-dev/hapax/weekbucket"
)

type snapshot struct {
	identity storage.Identity
	seq      uint64
	counts   map[Bucket]Count
	filters  map[weekbucket.Week]*bloom.Filter
}

func (s *snapshot) write(w io.Writer) error {
	weeks := slices.Sorted(maps.Keys(s.filters))
	if _, err := w.Write(s.header(weeks)); err != nil {
		return err
	}
	for _, week := range weeks {
		if _, err := s.filters[week].WriteTo(w); err != nil {
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
	for bucket, c := range s.counts {
		b = binary.AppendUvarint(b, bucket.Scope)
		b = bucket.Week.AppendKey(b)
		b = binary.AppendUvarint(b, c.Claims)
		b = binary.BigEndian.AppendUint64(b, c.XOR)
	}
	b = binary.AppendUvarint(b, uint64(len(weeks)))
	for _, week := range weeks {
		b = week.AppendKey(b)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return binary.BigEndian.AppendUint32(b, crc32c.Checksum(b))
}

// readSnapshotHeader reads the header of a sidecar of the given size. The filters of the weeks
// follow, in body bytes.
func readSnapshotHeader(r io.Reader, size int64) (s *snapshot, weeks []weekbucket.Week, body int64, err error) {
	header, err := readSealed(r, size)
	if err != nil {
		return nil, nil, 0, err
	}
	d := decode.Decoder{Rest: header}
	if string(d.Take(uint64(len(snapshotMagic)))) != snapshotMagic || d.Uint32() != snapshotVersion {
		return nil, nil, 0, fmt.Errorf("%w: of another kind or version", errUnusable)
	}
	s = &snapshot{}
	copy(s.identity.UUID[:], d.Take(16))
	s.identity.Incarnation = d.Uint64()
	s.seq = d.Uint64()
	s.counts = make(map[Bucket]Count)
	for range d.Count(1 + weekbucket.KeySize + 1 + 8) {
		b := Bucket{Scope: d.Uvarint()}
		b.Week = d.Week()
		s.counts[b] = Count{Claims: d.Uvarint(), XOR: d.Uint64()}
	}
	for range d.Count(weekbucket.KeySize) {
		weeks = append(weeks, d.Week())
	}
	if d.Bad || len(d.Rest) != 0 {
		return nil, nil, 0, fmt.Errorf("%w: header malformed", errUnusable)
	}
	return s, weeks, size - int64(len(header)) - 8, nil
}

// readSealed reads the header of a sidecar, with its length and checksum.
func readSealed(r io.Reader, size int64) (header []byte, err error) {
	torn := fmt.Errorf("%w: header torn or damaged", errUnusable)
	var length [4]byte
	if size < 8 {
		return nil, torn
	}
	if err := readFull(r, length[:]); err != nil {
		return nil, err
	}
	n := int64(binary.BigEndian.Uint32(length[:]))
	if n > size-8 {
		return nil, torn
	}
	b := append(length[:], make([]byte, n+4)...)
	if err := readFull(r, b[4:]); err != nil {
		return nil, err
	}
	if crc32c.Checksum(b[:4+n]) != binary.BigEndian.Uint32(b[4+n:]) {
		return nil, torn
	}
	return b[4 : 4+n], nil
}

// readFull fills b. If the sidecar is too short, it is unusable.
func readFull(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: torn", errUnusable)
	}
	return err
}

// readFilters reads the filters of the given weeks, which are the rest of the sidecar. growerOf
// returns the grower of a week's filter.
func (s *snapshot) readFilters(r io.Reader, weeks []weekbucket.Week, body int64, growerOf func(weekbucket.Week) grower) error {
	filters := make(map[weekbucket.Week]*bloom.Filter, len(weeks))
	rest := io.LimitedReader{R: r, N: body}
	for _, week := range weeks {
		f, err := bloom.Read(&rest, rest.N, bloom.Options{Grow: growerOf(week)})
		if errors.Is(err, bloom.ErrCorrupt) {
			return fmt.Errorf("%w: filter of %s: %w", errUnusable, week, err)
		}
		if err != nil {
			return err
		}
		filters[week] = f
	}
	if rest.N != 0 {
		return fmt.Errorf("%w: %d bytes too many", errUnusable, rest.N)
	}
	s.filters = filters
	return nil
}

// A snapshot contains the filters and counts as of a batch, so that Open need not scan the claims.
// Two sidecars are written in turn, and the journal is kept from the older snapshot on. The layout
// of a sidecar, numbers big endian:
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
// A bloom snapshot has its own checksum. A sidecar with an error is ignored.
const (
	snapshotMagic   = "HXSCREEN"
	snapshotVersion = 1

	snapshotFraction = 4 // at least total/4 claims between two snapshots
)

var snapshotNames = [2]string{"screen-0", "screen-1"}

var errUnusable = errors.New("snapshot unusable")
