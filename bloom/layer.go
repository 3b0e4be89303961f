package bloom

import (
	"math/bits"
	"sync/atomic"

	"github.com/hapax-dev/hapax/internal/offheap"
)

// A block is one cache line of eight lanes. A hash selects one bit in each lane of one block, so a
// lookup costs one cache miss for each layer.
type block [lanes]uint64

const (
	lanes      = 8
	blockBytes = 8 * lanes
	blockBits  = 8 * blockBytes
)

// salts derive eight bit positions from the low half of a hash by multiply-shift. They are the odd
// constants of Parquet's split-block filter, and part of the snapshot's format.
var salts = [lanes]uint32{
	0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d,
	0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31,
}

// bit returns the bit of h in a lane, which the top six bits of a product select.
func bit(h uint64, lane int) uint64 {
	return 1 << (uint32(h) * salts[lane] >> 26)
}

// A layer is a filter of fixed size with a link to its predecessor. Bits are set and never cleared,
// so a reader needs no lock, and a copy taken under load has at least the bits that were set when
// it began.
//
// The blocks live as long as the layer (offheap.Make), and the layer as long as its filter. So a
// method of Filter keeps the filter alive (runtime.KeepAlive) while it uses blocks.
type layer struct {
	blocks []block
	design uint64 // number of keys it is made for
	older  *layer // nil for the first

	// Every new hash changes added. If it shared a cache line with the fields above, a lookup
	// concurrent with one adding goroutine would take up to twice as long.
	_     [blockBytes]byte
	added atomic.Uint64
}

func newLayer(blocks, bitsPerKey uint64, older *layer) *layer {
	l := &layer{
		design: blocks * keysPerBlock(bitsPerKey),
		older:  older,
	}
	l.blocks, _ = offheap.Make[block](l, blocks)
	return l
}

func keysPerBlock(bitsPerKey uint64) uint64 { return blockBits / bitsPerKey }

// blocksFor rounds up, without overflow for any number of keys but 0.
func blocksFor(keys, bitsPerKey uint64) uint64 {
	return (keys-1)/keysPerBlock(bitsPerKey) + 1
}

// blockOf scales the hash to the number of blocks: its high bits select the block.
func (l *layer) blockOf(h uint64) *block { return &l.blocks[l.indexOf(h)] }

func (l *layer) indexOf(h uint64) uint64 {
	i, _ := bits.Mul64(h, uint64(len(l.blocks)))
	return i
}

// contains has two branches instead of one for each lane, which would be mispredicted in most
// calls.
func (l *layer) contains(h uint64) bool {
	b := l.blockOf(h)
	return has(b, h, 0)&has(b, h, 1)&has(b, h, 2)&has(b, h, 3)&1 != 0 &&
		has(b, h, 4)&has(b, h, 5)&has(b, h, 6)&has(b, h, 7)&1 != 0
}

// has returns a word whose lowest bit is the bit of h in a lane.
func has(b *block, h uint64, lane int) uint64 {
	return atomic.LoadUint64(&b[lane]) >> (uint32(h) * salts[lane] >> 26)
}

// prefetch loads the blocks of the hashes into the processor's cache.
func (l *layer) prefetch(hashes []uint64) {
	for _, h := range hashes {
		atomic.LoadUint64(&l.blockOf(h)[0])
	}
}

// chainContains checks l and every older layer.
func (l *layer) chainContains(h uint64) bool {
	for ; l != nil; l = l.older {
		if l.contains(h) {
			return true
		}
	}
	return false
}

// set sets the bits of h.
func (l *layer) set(h uint64) {
	b := l.blockOf(h)
	for i := range b {
		atomic.OrUint64(&b[i], bit(h, i))
	}
}

func (l *layer) bytes() uint64 { return blockBytes * uint64(len(l.blocks)) }

// chainLen counts l and all older layers.
func (l *layer) chainLen() int {
	n := 0
	for ; l != nil; l = l.older {
		n++
	}
	return n
}

// chainBytes is the size of l and of all older layers.
func (l *layer) chainBytes() uint64 {
	var n uint64
	for ; l != nil; l = l.older {
		n += l.bytes()
	}
	return n
}

// sampleBlocks bounds the work of fpRate.
const sampleBlocks = 1 << 16

// fpRate is the mean over blocks of the chance that eight random bits, one in each lane, are all
// set. The mean share of set bits alone would give too low a rate, because full blocks add more
// false positives than empty ones save.
func (l *layer) fpRate() float64 {
	step := (len(l.blocks)-1)/sampleBlocks + 1
	sum, n := 0.0, 0
	for i := 0; i < len(l.blocks); i += step {
		p := 1.0
		for lane := range lanes {
			p *= float64(bits.OnesCount64(atomic.LoadUint64(&l.blocks[i][lane]))) / 64
		}
		sum += p
		n++
	}
	return sum / float64(n)
}
