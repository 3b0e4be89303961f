package pebble

import (
	"bytes"
	"encoding/binary"

	"github.com/hapax-dev/hapax/internal/crc32c"
)

// Logs and MANIFESTs are sequences of chunks in blocks of 32 KiB. No chunk crosses a block; the
// rest of a block is zero. Numbers are little endian, and the checksum covers the bytes after the
// length:
//
//	+-----------+------------+---------+---------------+-------------------+---------+
//	| CRC-32C 4 | length 2   | type 1  | log number 4  | synced offset 8   | payload |
//	+-----------+------------+---------+---------------+-------------------+---------+
//	                                   types 5 to 12     types 9 to 12
//
// Pebble takes the first unreadable chunk for the end that a crash left, and looks for proof of the
// contrary only in the following blocks. Here every later byte is searched for intact chunks, whose
// synced offsets and durability records show what was durable when they were written.
const (
	blockSize      = 32 << 10
	manifestHeader = 7
	logHeader      = 11
	syncedHeader   = 19
)

// A chunk is an intact chunk, whose checksum is correct.
type chunk struct {
	first   bool // first or only chunk of a record
	synced  uint64
	payload []byte
	size    int
}

// A chunkScan is the result of scanning a file.
type chunkScan struct {
	valid int64 // length of the intact sequence of chunks
	proof bool  // a later intact chunk shows that this place was durable
	// newest is the newest batch in the durability records of all intact chunks.
	newest uint64
}

// scanLog reads a log. number is the low half of the number in its name.
func scanLog(data []byte, number uint32) chunkScan {
	var scan chunkScan
	pattern := binary.LittleEndian.AppendUint32(nil, number)
	end := walk(data, number, true, func(c chunk) { scan.noteDurability(c) })
	scan.valid = int64(end)
	tail := data[end:]
	// For Pebble, a chunk with the number of the next log ends the log, even if damage changed the
	// number.
	scan.proof = len(tail) >= logHeader && !isTrailer(tail, number) &&
		tail[6] > 4 && tail[6] <= 12 && binary.LittleEndian.Uint32(tail[7:]) == number+1
	for pos := end + 1; ; {
		i := bytes.Index(data[min(pos+7, len(data)):], pattern)
		if i < 0 {
			return scan
		}
		pos += i
		c, ok := parseChunk(block(data, pos), number, true)
		if !ok {
			pos++
			continue
		}
		scan.noteDurability(c)
		scan.proof = scan.proof || c.synced > uint64(end)
		pos += c.size
	}
}

func (s *chunkScan) noteDurability(c chunk) {
	if !c.first {
		return
	}
	if durable, ok := parseDurability(c.payload); ok {
		s.newest = max(s.newest, durable)
	}
}

// scanManifest reads a MANIFEST. Each of its records was synced before the next one was written.
func scanManifest(data []byte) chunkScan {
	end := walk(data, 0, false, func(chunk) {})
	scan := chunkScan{valid: int64(end)}
	for pos := end + 1; pos < len(data) && !scan.proof; pos++ {
		c, ok := parseChunk(block(data, pos), 0, false)
		scan.proof = ok && c.first
	}
	return scan
}

// walk calls fn for each chunk in order and returns where the chunks end. Pebble itself detects
// chunks that do not form complete records.
func walk(data []byte, number uint32, log bool, fn func(chunk)) (end int) {
	for end < len(data) {
		b := block(data, end)
		if c, ok := parseChunk(b, number, log); ok {
			fn(c)
			end += c.size
			continue
		}
		if !isPadding(b, log) || end+len(b) == len(data) && len(data)%blockSize != 0 {
			return end
		}
		end += len(b)
	}
	return end
}

// block returns the rest of the block that contains pos.
func block(data []byte, pos int) []byte {
	if pos >= len(data) {
		return nil
	}
	return data[pos:min(len(data), (pos/blockSize+1)*blockSize)]
}

func parseChunk(b []byte, number uint32, log bool) (chunk, bool) {
	if len(b) < manifestHeader {
		return chunk{}, false
	}
	header, kind := 0, b[6]
	switch {
	case !log && kind >= 1 && kind <= 4:
		header = manifestHeader
	case log && kind >= 5 && kind <= 8:
		header = logHeader
	case log && kind >= 9 && kind <= 12:
		header = syncedHeader
	default:
		return chunk{}, false
	}
	size := header + int(binary.LittleEndian.Uint16(b[4:]))
	if size > len(b) || log && binary.LittleEndian.Uint32(b[7:]) != number {
		return chunk{}, false
	}
	if binary.LittleEndian.Uint32(b) != maskedCRC(b[6:size]) {
		return chunk{}, false
	}
	position := (kind - 1) % 4 // full, first, middle, last
	c := chunk{first: position < 2, payload: b[header:size], size: size}
	if header == syncedHeader {
		c.synced = binary.LittleEndian.Uint64(b[11:])
	}
	return c, true
}

// maskedCRC is the checksum masked as in LevelDB, so that checksummed data may contain checksums.
func maskedCRC(b []byte) uint32 {
	c := crc32c.Checksum(b)
	return (c>>15 | c<<17) + 0xa282ead8
}

func isPadding(b []byte, log bool) bool {
	if log {
		return len(b) < syncedHeader && isZero(b)
	}
	return len(b) < manifestHeader && isZero(b)
}

// isTrailer reports whether b begins with the empty chunk of the next log with which Pebble closes
// a log.
func isTrailer(b []byte, number uint32) bool {
	return len(b) >= logHeader && isZero(b[:6]) && b[6] == 5 && binary.LittleEndian.Uint32(b[7:]) == number+1
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
