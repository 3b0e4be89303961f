package occ

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A writeLog agrees with a list of all writes, for every transaction that began after its floor,
// and never exceeds its limit.
func TestWriteLogAgreesWithAList(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	key := func() string { return fmt.Sprintf("h%02d", rnd.IntN(30)) }
	for range 50 {
		var log writeLog
		var all []loggedWrite
		oldest := uint64(0) // start of the oldest open transaction
		for seq := uint64(1); seq < 60; seq++ {
			for range rnd.IntN(4) {
				w := loggedWrite{key(), seq}
				all = append(all, w)
				log.add(w.key, w.seq)
			}
			if rnd.IntN(8) == 0 {
				oldest += rnd.Uint64N(seq + 1 - oldest)
				log.forget(oldest)
			}
			start := oldest + rnd.Uint64N(seq+1-oldest)
			var ranges []Range
			for i := 0; i < 30; i += 1 + rnd.IntN(12) {
				end := min(i+rnd.IntN(6), 30)
				ranges = append(ranges, Range{fmt.Appendf(nil, "h%02d", i), fmt.Appendf(nil, "h%02d", end)})
				i = end
			}
			newest := uint64(0)
			for _, r := range ranges {
				want, by := "", uint64(0)
				for _, w := range all {
					if w.seq > start && r.holds(w.key) && (by == 0 || w.key <= want) {
						want, by = w.key, w.seq
					}
					if w.seq > start && r.holds(w.key) {
						newest = max(newest, w.seq)
					}
				}
				if got, gotBy := log.changed(r, start); got != want || gotBy != by {
					t.Fatalf("the first change in %s since %d is %q in batch %d, want %q in %d", r, start, got, gotBy, want, by)
				}
			}
			if got := log.newest(ranges, start, start); got != newest {
				t.Fatalf("the newest change in %s is that of batch %d, want %d", ranges, got, newest)
			}
		}
	}
}

func TestWriteLogDropsWritesAtItsLimit(t *testing.T) {
	var log writeLog
	key := "h" + string(make([]byte, 1000))
	for seq := uint64(1); seq < 100_000; seq++ {
		log.add(key, seq)
		if log.full() {
			log.forget(0) // a transaction from the very beginning is open
		}
		if log.bytes > maxLogBytes+len(key)+loggedWriteIn {
			t.Fatalf("%d bytes", log.bytes)
		}
	}
	elsewhere := []Range{{Lo: []byte("a"), Hi: []byte("b")}}
	if log.floor == 0 || log.newest(elsewhere, 0, 0) != log.floor {
		t.Error("a transaction whose concurrent writes were dropped did not conflict")
	}
	if log.newest(elsewhere, log.floor, 0) != 0 || log.newest(nil, 0, 0) != 0 {
		t.Error("a transaction that began later, or has not scanned, conflicts")
	}
	if !slices.IsSortedFunc(log.writes, func(a, b loggedWrite) int { return int(a.seq) - int(b.seq) }) {
		t.Error("not in the order of the batches")
	}
}

func TestMergedRangesHoldTheSameKeys(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	for range 300 {
		var before []Range
		for range rnd.IntN(6) {
			r := Range{Lo: fmt.Appendf(nil, "%02d", rnd.IntN(40))}
			if rnd.IntN(8) > 0 {
				r.Hi = fmt.Appendf(nil, "%02d", rnd.IntN(40))
				if string(r.Hi) < string(r.Lo) {
					r.Lo, r.Hi = r.Hi, r.Lo
				}
			}
			before = append(before, r)
		}
		merged := mergeRanges(slices.Clone(before))
		for i := range 40 {
			key := fmt.Sprintf("%02d", i)
			in := func(rs []Range) bool {
				return slices.ContainsFunc(rs, func(r Range) bool { return r.holds(key) })
			}
			if in(before) != in(merged) {
				t.Fatalf("%s merged to %s: %s", before, merged, key)
			}
		}
		for i := 1; i < len(merged); i++ {
			if hi := merged[i-1].Hi; hi == nil || string(hi) >= string(merged[i].Lo) {
				t.Fatalf("%s merged to %s", before, merged)
			}
		}
	}
}
