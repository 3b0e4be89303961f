package bolt

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
)

// The file has five top-level buckets:
//
//	claims   a bucket for each (scope, week), named by storage.Bucket.AppendPrefix: the tail of a claim's key -> record
//	journal  the batch's Seq, 8 bytes big endian -> Batch.Journal
//	meta     "head" -> the head
//	state    's' and the state's key -> value
//	sums     which tree -> its sum: 'c' and the prefix, 'j' or 's'
//
// Every value except a bucket ends in a checksum (see internal/pages/seal.go). The checks form a
// chain: a meta page has bbolt's checksum and a transaction number; the head has the same number
// and a sum of the sums; each sum covers one tree.
var (
	claimsDir  = []byte("claims")
	journalDir = []byte("journal")
	metaDir    = []byte("meta")
	stateDir   = []byte("state")
	sumsDir    = []byte("sums")

	headKey = []byte("head")
)

// The spaces of checksums. The values are stored and must not change.
const (
	claimSpace   = 'c'
	stateSpace   = 's'
	journalSpace = 'j'
	metaSpace    = 'm'
	sumSpace     = 'a'
)

var topDirs = [][]byte{claimsDir, journalDir, metaDir, stateDir, sumsDir} // in key order

func stateKey(key []byte) []byte { return append([]byte{stateSpace}, key...) }

func sumKey(space byte, prefix []byte) []byte { return append([]byte{space}, prefix...) }

func journalKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// A sum describes the entries of a tree, independent of their order: their number, the exclusive or
// of their xxhash64 (over key, record and checksum), and their size. It is stored as three uint64,
// big endian.
type sum struct {
	count uint64
	xor   uint64
	bytes uint64
}

const sumSize = 24

func (s *sum) add(entry []byte) {
	s.count++
	s.xor ^= xxhash.Sum64(entry)
	s.bytes += uint64(len(entry)) + pages.ElementSize
}

func (s *sum) remove(entry []byte) {
	s.count--
	s.xor ^= xxhash.Sum64(entry)
	s.bytes -= uint64(len(entry)) + pages.ElementSize
}

func (s sum) encode() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, sumSize), s.count)
	b = binary.BigEndian.AppendUint64(b, s.xor)
	return binary.BigEndian.AppendUint64(b, s.bytes)
}

func parseSum(b []byte) (sum, error) {
	if len(b) != sumSize {
		return sum{}, pages.Damaged("a sum of %d bytes", len(b))
	}
	return sum{
		count: binary.BigEndian.Uint64(b),
		xor:   binary.BigEndian.Uint64(b[8:]),
		bytes: binary.BigEndian.Uint64(b[16:]),
	}, nil
}

// The head is written by every transaction:
//
//	| format u8 | uuid 16 | incarnation u64 | seq u64 | txid u64 | sum of the sums, 24 |
//
// Numbers are big endian. seq is the number of the newest batch, txid that of the bbolt transaction
// that wrote the head.
type head struct {
	uuid        [16]byte
	incarnation uint64
	seq         uint64
	txid        uint64
	sums        sum
}

const (
	headFormat = 1
	headSize   = 1 + 16 + 8 + 8 + 8 + sumSize
)

func (h *head) encode() []byte {
	b := append(make([]byte, 0, headSize), headFormat)
	b = append(b, h.uuid[:]...)
	b = binary.BigEndian.AppendUint64(b, h.incarnation)
	b = binary.BigEndian.AppendUint64(b, h.seq)
	b = binary.BigEndian.AppendUint64(b, h.txid)
	return append(b, h.sums.encode()...)
}

func parseHead(b []byte) (h head, err error) {
	if len(b) == 0 || b[0] != headFormat || len(b) != headSize {
		return head{}, pages.Damaged("a head of %d bytes", len(b))
	}
	copy(h.uuid[:], b[1:17])
	h.incarnation = binary.BigEndian.Uint64(b[17:])
	h.seq = binary.BigEndian.Uint64(b[25:])
	h.txid = binary.BigEndian.Uint64(b[33:])
	h.sums, err = parseSum(b[41:])
	return h, err
}

func (h *head) belongsTo(id storage.Identity) bool {
	return h.uuid == id.UUID && h.incarnation == id.Incarnation
}
