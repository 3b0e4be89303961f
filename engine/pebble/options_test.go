package pebble

import "testing"

// The sizes of memtables and levels follow PendingBytes, so that one option makes a store small.
func TestSizesFollowPendingBytes(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		set               Options
		pending, memTable uint64
		lbase             int64
	}{
		{Options{}, 48 * mb, 96 * mb, lastLevelRuns * 48 * mb},
		{Options{PendingBytes: 4 * mb}, 4 * mb, 8 * mb, lastLevelRuns * 4 * mb},
		{Options{PendingBytes: maxTableBytes}, maxTableBytes, maxTableBytes, lastLevelRuns * maxTableBytes},
		{Options{MemTableBytes: 8 * mb}, 4 * mb, 8 * mb, lastLevelRuns * 4 * mb},
		{Options{MemTableBytes: 256 * mb}, 48 * mb, 256 * mb, lastLevelRuns * 48 * mb},
		{Options{PendingBytes: 16 * mb, MemTableBytes: 8 * mb}, 16 * mb, 8 * mb, lastLevelRuns * 16 * mb},
		{Options{PendingBytes: 1}, 1, minMemTableBytes, minLBaseBytes},
		{Options{SmallTables: true}, 64 << 10, 256 << 10, 64 << 10},
		{Options{SmallTables: true, PendingBytes: 16 << 10}, 16 << 10, 256 << 10, 64 << 10},
	} {
		o := c.set
		if err := o.setDefaults(); err != nil {
			t.Fatal(err)
		}
		p := o.pebbleOptions(newFailStopFS(nil, ""))
		if o.PendingBytes != c.pending || o.MemTableBytes != c.memTable || p.MemTableSize != c.memTable || p.LBaseMaxBytes != c.lbase {
			t.Errorf("%+v: pending %d, memtable %d, LBase %d; want %+v", c.set, o.PendingBytes, o.MemTableBytes, p.LBaseMaxBytes, c)
		}
	}
	for pending, boundary := range map[uint64]int{0: 4 * mb, 4 * mb: 4 * mb / runTables, maxTableBytes: 4 * mb} {
		o := Options{PendingBytes: pending}
		if err := o.setDefaults(); err != nil || o.boundaryBytes != boundary {
			t.Errorf("PendingBytes %d: tables of more than %d bytes end at ends of buckets, want %d", pending, o.boundaryBytes, boundary)
		}
	}
	for _, bad := range []Options{{CacheBytes: -1}, {PendingBytes: maxTableBytes + 1}, {MemTableBytes: maxTableBytes + 1}, {MemTableBytes: 1}} {
		if err := bad.setDefaults(); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
