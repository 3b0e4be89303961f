package bloom

import "sync/atomic"

// Options shape a new Filter. The zero value is ready for use.
type Options struct {
	// Expected is the number of keys that fit before the filter grows. 0
	// means 2048, in 4 KiB, so that hundreds of nearly empty filters cost
	// little.
	Expected uint64

	// BitsPerKey buys accuracy with memory: 16 gives about one false positive
	// in 1,000 for every layer that is full, 12 about four. 0 means 16;
	// anything else is brought into 4 to 64.
	BitsPerKey uint64

	// MaxBytes caps the memory for bits; 0 means no cap. A filter has at
	// least one block of 64 bytes, and does not grow where a layer twice as
	// large as the newest would not fit: see [Filter.Saturated].
	MaxBytes uint64
}

const (
	defaultExpected   = 2048
	defaultBitsPerKey = 16
	minBitsPerKey     = 4
	maxBitsPerKey     = 64

	fourfoldBytes = 16 << 20 // the largest layer to be four times its elder
)

func (o Options) withDefaults() Options {
	if o.Expected == 0 {
		o.Expected = defaultExpected
	}
	if o.BitsPerKey == 0 {
		o.BitsPerKey = defaultBitsPerKey
	}
	o.BitsPerKey = min(max(o.BitsPerKey, minBitsPerKey), maxBitsPerKey)
	if o.MaxBytes != 0 {
		o.MaxBytes = max(o.MaxBytes, blockBytes)
	}
	return o
}

// A Filter is a set of 64-bit hashes that may answer "maybe" for a hash that
// was never added, and never answers "no" for one that was.
//
// Once Add(h) has returned, MayContain(h) is true forever: in every goroutine, while the filter
// grows, and in every snapshot begun after that.
//
// Make one with [New] or [Open]. All methods may be called from any number of
// goroutines at once; none of them waits for another.
type Filter struct {
	bitsPerKey uint64
	maxBytes   uint64
	newest     atomic.Pointer[layer] // head of the chain, never nil
}

// New returns an empty filter. It allocates the first layer at once, as large
// as Expected keys need or as MaxBytes allows.
func New(o Options) *Filter {
	o = o.withDefaults()
	blocks := blocksFor(o.Expected, o.BitsPerKey)
	if o.MaxBytes != 0 {
		blocks = min(blocks, o.MaxBytes/blockBytes)
	}
	f := &Filter{bitsPerKey: o.BitsPerKey, maxBytes: o.MaxBytes}
	f.newest.Store(newLayer(blocks, o.BitsPerKey, nil))
	return f
}

// Add puts h into the filter.
//
// True means that h was certainly not there when the call began, because it set a bit that was not
// set. Of several goroutines that add the same new hash at once, at least one gets true, and all of
// them may be. False means that h may have been there; the call then changed nothing, so that
// repeats never grow the filter.
//
// The call that fills the newest layer allocates the next one, two to four times as large, before
// it returns. Others continue meanwhile.
func (f *Filter) Add(h uint64) (added bool) {
	newest := f.newest.Load()
	if newest.chainContains(h) || !newest.set(h) {
		return false
	}
	if n := newest.added.Add(1); n >= newest.design {
		f.grow(newest, n)
	}
	return true
}

// MayContain reports whether h may have been added. False is certain.
func (f *Filter) MayContain(h uint64) bool {
	return f.newest.Load().chainContains(h)
}

// MayContainAll sets may[i] to what MayContain(hashes[i]) returns, for all hashes as of one moment
// during the call. May must be at least as long as hashes. For filters that are larger than the
// processor's cache it takes half the time of single calls or less, because it waits for many
// blocks at once.
func (f *Filter) MayContainAll(hashes []uint64, may []bool) {
	newest := f.newest.Load()
	for len(hashes) > 0 {
		n := min(len(hashes), probesAhead)
		clear(may[:n])
		for l := newest; l != nil; l = l.older {
			l.containAll(hashes[:n], may[:n])
		}
		hashes, may = hashes[n:], may[n:]
	}
}

// grow puts a layer in front of l, which has taken its nth key, unless that
// is done, or the cap forbids it.
//
// The call that brings l to its design load grows it while others continue. It may be held up, by
// the scheduler or by the allocator, and what they add meanwhile spoils l for good; so past another
// eighth every call makes a layer of its own, the first to be ready counts, and the others are
// garbage.
func (f *Filter) grow(l *layer, n uint64) {
	if n > l.design && n < l.design+l.design/8 || f.newest.Load() != l {
		return
	}
	if blocks := f.nextBlocks(l); blocks > 0 {
		f.newest.CompareAndSwap(l, newLayer(blocks, f.bitsPerKey, l))
	}
}

// nextBlocks returns the size of the layer after l, at least twice that of l,
// or 0 if the cap leaves no room for it.
//
// Every layer is a probe for every key that is not there, so small layers
// grow fourfold: few of them remain, and what they waste is small.
func (f *Filter) nextBlocks(l *layer) uint64 {
	n := uint64(len(l.blocks))
	next := 2 * n
	if 4*l.bytes() <= fourfoldBytes {
		next = 4 * n
	}
	if f.maxBytes != 0 {
		used := l.chainBytes()
		next = min(next, (max(f.maxBytes, used)-used)/blockBytes)
	}
	if next < 2*n {
		return 0
	}
	return next
}

// SetMaxBytes replaces [Options.MaxBytes]. A filter that is larger already stays as it is and does
// not grow. Call it before other goroutines use the filter.
func (f *Filter) SetMaxBytes(n uint64) {
	f.maxBytes = Options{MaxBytes: n}.withDefaults().MaxBytes
}

// Len returns how many calls of Add got true. It is the number of distinct hashes, less those that
// were taken for repeats (a share of about EstimatedFPRate) and plus those that several goroutines
// added at once.
func (f *Filter) Len() uint64 {
	var n uint64
	for l := f.newest.Load(); l != nil; l = l.older {
		n += l.added.Load()
	}
	return n
}

// Bytes returns the memory held for bits, all but a few hundred bytes of what
// the filter uses.
func (f *Filter) Bytes() uint64 {
	return f.newest.Load().chainBytes()
}

// Saturated reports whether the filter is full and may not grow: MaxBytes is
// reached and the newest layer is past the load it was made for. Answers stay
// right, but every further key makes "maybe" more frequent.
func (f *Filter) Saturated() bool {
	l := f.newest.Load()
	return l.added.Load() >= l.design && f.nextBlocks(l) == 0
}

// EstimatedFPRate returns the share of hashes never added for which
// MayContain would answer true now, from 0 to 1. It counts the bits set in up
// to 4 MiB of every layer: milliseconds, for a report and not for every key.
func (f *Filter) EstimatedFPRate() float64 {
	miss := 1.0
	for l := f.newest.Load(); l != nil; l = l.older {
		miss *= 1 - l.fpRate()
	}
	return 1 - miss
}
