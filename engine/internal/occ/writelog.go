package occ

import (
	"bytes"
	"cmp"
	"slices"
)

// A writeLog lists the recently written keys in the order of batches. Scans are validated with it;
// reads of single keys are validated with the map of keys (History.written).
type writeLog struct {
	writes []loggedWrite
	bytes  int
	prune  int    // size at which old writes are next dropped
	floor  uint64 // writes up to this batch may be missing
}

type loggedWrite struct {
	key string
	seq uint64
}

// Memory of a writeLog. Beyond maxLogBytes, the oldest writes are dropped, and transactions with
// scans that began before them conflict.
const (
	minLogBytes   = 64 << 10
	maxLogBytes   = 16 << 20
	loggedWriteIn = 64 // approximate size of a write without its key
)

// add records a write of batch seq to a key.
func (l *writeLog) add(key string, seq uint64) {
	l.writes = append(l.writes, loggedWrite{key, seq})
	l.bytes += len(key) + loggedWriteIn
}

func (l *writeLog) full() bool { return l.bytes >= max(l.prune, minLogBytes) }

// forget drops the writes up to batch upTo, and more if the log has reached its limit.
func (l *writeLog) forget(upTo uint64) {
	n := l.after(upTo)
	for l.bytes-l.sizeOf(n) >= maxLogBytes/2 && l.bytes >= maxLogBytes {
		n += (len(l.writes) - n + 1) / 2
		l.floor = l.writes[n-1].seq
	}
	l.bytes -= l.sizeOf(n)
	l.writes = slices.Delete(l.writes, 0, n)
	l.prune = min(2*l.bytes, maxLogBytes)
}

func (l *writeLog) sizeOf(n int) (size int) {
	for _, w := range l.writes[:n] {
		size += len(w.key) + loggedWriteIn
	}
	return size
}

// after returns the index of the first write of a batch after seq.
func (l *writeLog) after(seq uint64) int {
	n, _ := slices.BinarySearchFunc(l.writes, seq+1, func(w loggedWrite, seq uint64) int { return cmp.Compare(w.seq, seq) })
	return n
}

// changed returns the least key in the range that a batch after start may have written, and that
// batch, 0 if there is none.
func (l *writeLog) changed(r Range, start uint64) (least string, by uint64) {
	if start < l.floor {
		return string(r.Lo), l.floor
	}
	for _, w := range l.writes[l.after(start):] {
		if r.holds(w.key) && (by == 0 || w.key <= least) {
			least, by = w.key, w.seq
		}
	}
	return least, by
}

// newest returns the newest batch after since that may have written a key in one of the ranges, 0
// if there is none. The ranges are sorted and disjoint. It finds every batch after start, which is
// at least since, but may miss earlier ones.
func (l *writeLog) newest(ranges []Range, start, since uint64) uint64 {
	if len(ranges) == 0 {
		return 0
	}
	if start < l.floor {
		return l.floor
	}
	for _, w := range slices.Backward(l.writes[l.after(since):]) {
		i, at := slices.BinarySearchFunc(ranges, w.key, func(r Range, key string) int { return cmp.Compare(string(r.Lo), key) })
		if !at {
			i--
		}
		if i >= 0 && ranges[i].holds(w.key) {
			return w.seq
		}
	}
	return 0
}

// A Range is the range of keys that are at least Lo and less than Hi. A nil Hi is greater than
// every key.
type Range struct{ Lo, Hi []byte }

func (r Range) holds(key string) bool {
	return key >= string(r.Lo) && (r.Hi == nil || key < string(r.Hi))
}

// size returns how much a scan of the range counts towards limits.TxReadBytes.
func (r Range) size() int { return len(r.Lo) + len(r.Hi) + keyOverhead }

// mergeRanges sorts ranges and merges overlapping ones.
func mergeRanges(ranges []Range) []Range {
	slices.SortFunc(ranges, func(a, b Range) int { return bytes.Compare(a.Lo, b.Lo) })
	merged := ranges[:0]
	for _, r := range ranges {
		if n := len(merged); n > 0 && (merged[n-1].Hi == nil || bytes.Compare(r.Lo, merged[n-1].Hi) <= 0) {
			if last := &merged[n-1]; last.Hi != nil && (r.Hi == nil || bytes.Compare(r.Hi, last.Hi) > 0) {
				last.Hi = r.Hi
			}
			continue
		}
		merged = append(merged, r)
	}
	return merged
}
