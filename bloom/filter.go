package bloom

import (
	"math"
	"runtime"
	"sync/atomic"
)

// Options configure a new Filter. The zero value is ready for use.
type Options struct {
	// Expected is the number of keys that fit before the filter grows. 0 means 2048, which take 4
	// KiB, so that hundreds of nearly empty filters cost little.
	Expected uint64

	// BitsPerKey is the memory for each key: 16 bits give about one false positive in 1,000 for
	// every full layer, 12 bits about four. 0 means 16; other values are limited to 4 to 64.
	BitsPerKey uint64

	// MaxBytes limits the memory for bits; 0 means no limit. A filter has at least one block of 64
	// bytes. It does not grow if a layer twice as large as the newest would exceed the limit: see
	// [Filter.Saturated].
	MaxBytes uint64

	// Grow, if not nil, decides whether the filter may grow, so that several filters can share a
	// limit. The Add that fills the newest layer calls it with the size in bytes that the next
	// layer would have, and the least useful size. Before Grow returns, it calls add with the size
	// of the new layer. If it does not call add, it is asked again after some more keys. Several
	// goroutines may call Grow concurrently. Grow must not add keys to the same filter, because
	// that call would not return.
	Grow func(f *Filter, want, least uint64, add func(bytes uint64))
}

const (
	defaultExpected   = 2048
	defaultBitsPerKey = 16
	minBitsPerKey     = 4
	maxBitsPerKey     = 64

	fourfoldBytes = 64 << 20 // while there are few layers, the largest one that is four times as large as its predecessor
	fewLayers     = 6        // number of layers from which every layer is four times as large as its predecessor
	maxLayers     = 10       // maximum number of probes for a key
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

// A Filter is a set of 64-bit hashes. It may answer "maybe" for a hash that was never added, but
// never "no" for one that was.
//
// Once Add(h) has returned, MayContain(h) is true forever: in every goroutine, while the filter
// grows, and in every snapshot begun after that.
//
// Make one with [New], [Read] or [All]. All methods may be called concurrently; none of them waits
// for another.
type Filter struct {
	o       Options               // with defaults
	newest  atomic.Pointer[layer] // head of the chain, never nil
	refused atomic.Bool           // there was no room for the layer after the newest
}

// New returns an empty filter. It allocates the first layer, as large as Expected keys need or as
// MaxBytes allows.
func New(o Options) *Filter {
	o = o.withDefaults()
	blocks := blocksFor(o.Expected, o.BitsPerKey)
	if o.MaxBytes != 0 {
		blocks = min(blocks, o.MaxBytes/blockBytes)
	}
	f := &Filter{o: o}
	f.newest.Store(newLayer(blocks, o.BitsPerKey, nil))
	return f
}

// All returns a filter that contains every hash, in 64 bytes: Add returns false, MayContain true.
// It replaces a filter whose memory is needed elsewhere. Its Len returns n.
func All(n uint64) *Filter {
	f := New(Options{MaxBytes: blockBytes})
	l := f.newest.Load()
	for lane := range l.blocks[0] {
		l.blocks[0][lane] = math.MaxUint64
	}
	l.added.Store(n)
	return f
}

// ContainsAll reports whether the filter contains every hash in 64 bytes: All has made it, or a
// snapshot of it, or it is equally small and all its bits are set.
func (f *Filter) ContainsAll() bool {
	l := f.newest.Load()
	return l.older == nil && len(l.blocks) == 1 && l.fpRate() == 1 // one block is in the heap
}

// Add adds h to the filter.
//
// It returns true if it found that a bit of h was not set: h was then certainly not in the filter
// when the call began. Of several goroutines that add the same new hash at once, at least one gets
// true, and all of them may. It returns false if h may have been in the filter; the call then
// changed nothing, so that repeats never grow the filter.
//
// Before the call that fills the newest layer returns, it allocates the next one, two to four times
// as large. Other calls continue meanwhile.
func (f *Filter) Add(h uint64) (added bool) {
	newest := f.newest.Load()
	found := newest.chainContains(h)
	if !found {
		f.add(newest, h)
	}
	runtime.KeepAlive(f)
	return !found
}

// AddNew adds h, which the caller knows to be new, and so looks for it in the newest layer only. A
// hash that an older layer already has is counted again.
func (f *Filter) AddNew(h uint64) {
	if newest := f.newest.Load(); !newest.contains(h) {
		f.add(newest, h)
	}
	runtime.KeepAlive(f)
}

func (f *Filter) add(newest *layer, h uint64) {
	newest.set(h)
	if n := newest.added.Add(1); n >= newest.design {
		f.grow(newest, n)
	}
}

// MayContain reports whether h may have been added. False is certain.
func (f *Filter) MayContain(h uint64) bool {
	found := f.newest.Load().chainContains(h)
	runtime.KeepAlive(f)
	return found
}

// Prefetch loads what MayContain and Add read for these hashes into the processor's cache, many
// blocks at a time. If the filter is larger than the cache, Prefetch and the calls for some hundred
// hashes together take at most half the time of the calls alone. It changes no answer.
func (f *Filter) Prefetch(hashes []uint64) {
	for l := f.newest.Load(); l != nil; l = l.older {
		l.prefetch(hashes)
	}
	runtime.KeepAlive(f)
}

// PrefetchNew is Prefetch for AddNew.
func (f *Filter) PrefetchNew(hashes []uint64) {
	f.newest.Load().prefetch(hashes)
	runtime.KeepAlive(f)
}

// grow puts a layer in front of l, which has reached n keys, unless another call has done so or
// there is no room for it.
//
// The call that brings l to its design load grows the filter while others continue. The scheduler
// or the allocator may delay that call, and hashes that others add to l meanwhile lower its
// accuracy permanently. So after another eighth of the load, every call makes a new layer. The
// first of these layers is used, and the others are garbage. If there was no room, one call in each
// eighth tries again.
func (f *Filter) grow(l *layer, n uint64) {
	eighth := l.design / 8
	switch {
	case f.newest.Load() != l,
		n > l.design && n < l.design+eighth,
		n > l.design && f.refused.Load() && n%(eighth+1) != 0:
		return
	}
	add := func(bytes uint64) {
		if f.newest.Load() == l {
			f.newest.CompareAndSwap(l, newLayer(max(bytes/blockBytes, 1), f.o.BitsPerKey, l))
		}
	}
	next := f.nextBlocks(l) * blockBytes
	switch {
	case next == 0:
	case f.o.Grow == nil:
		add(next)
	default:
		f.o.Grow(f, next, 2*l.bytes(), add)
	}
	f.refused.Store(f.newest.Load() == l)
}

// nextBlocks returns the size of the layer after l, at least twice that of l, or 0 if the limit
// leaves no room for it or there are maxLayers.
//
// Every layer costs a probe for each absent key. So small layers grow fourfold: there are then few
// of them, and they waste little memory.
func (f *Filter) nextBlocks(l *layer) uint64 {
	layers := l.chainLen()
	if layers >= maxLayers {
		return 0
	}
	n := uint64(len(l.blocks))
	next := 2 * n
	if 4*l.bytes() <= fourfoldBytes || layers >= fewLayers {
		next = 4 * n
	}
	if f.o.MaxBytes != 0 {
		used := l.chainBytes()
		next = min(next, (max(f.o.MaxBytes, used)-used)/blockBytes)
	}
	if next < 2*n {
		return 0
	}
	return next
}

// MaxBytes returns [Options.MaxBytes]; for a filter that was read from a snapshot, that of the
// original filter.
func (f *Filter) MaxBytes() uint64 { return f.o.MaxBytes }

// SetMaxBytes replaces [Options.MaxBytes]. A filter that is already larger remains as it is and
// does not grow. Call it before other goroutines use the filter.
func (f *Filter) SetMaxBytes(n uint64) {
	f.o.MaxBytes = Options{MaxBytes: n}.withDefaults().MaxBytes
}

// Len returns how many calls of Add got true. That is the number of distinct hashes, less those
// that looked like repeats (a share of about EstimatedFPRate), plus those that several goroutines
// added at once.
func (f *Filter) Len() uint64 {
	var n uint64
	for l := f.newest.Load(); l != nil; l = l.older {
		n += l.added.Load()
	}
	return n
}

// Bytes returns the memory for bits. The filter uses only a few hundred bytes more.
func (f *Filter) Bytes() uint64 {
	return f.newest.Load().chainBytes()
}

// Saturated reports whether the filter is full and cannot grow: MaxBytes is reached, or Grow had
// no room, or there are ten layers, and the newest layer is past the load it was made for. Answers
// remain correct, but every further key makes "maybe" more frequent.
func (f *Filter) Saturated() bool {
	l := f.newest.Load()
	return l.added.Load() >= l.design && !f.ContainsAll() &&
		(f.nextBlocks(l) == 0 || f.o.Grow != nil && f.refused.Load())
}

// EstimatedFPRate returns the share of absent hashes for which MayContain would return true now,
// from 0 to 1. It counts the bits in up to 4 MiB of every layer, which takes milliseconds: call it
// for reports, not for every key.
func (f *Filter) EstimatedFPRate() float64 {
	miss := 1.0
	for l := f.newest.Load(); l != nil; l = l.older {
		miss *= 1 - l.fpRate()
	}
	runtime.KeepAlive(f)
	return 1 - miss
}
