package runs

import (
	"errors"
	"slices"
	"testing"
)

// The index opens no table whose filter and index need more bytes than there is room.
func TestATableNeedsRoom(t *testing.T) {
	f := newFixture(t)
	f.ingest(claimKeys(100), 100)
	x := f.loaded()
	layout, err := x.list.Load().groups[0][0].reader.Layout()
	if err != nil || len(layout.Filter) != 1 || len(layout.Index) == 0 {
		t.Fatal("a table without a filter or an index", err)
	}
	need := layout.Filter[0].Length
	for _, i := range layout.Index {
		need += i.Length
	}
	info := slices.Concat(f.version()...)[0].TableInfo
	if uint64(info.FileNum) != x.list.Load().groups[0][0].number {
		t.Fatal("the tables are not the same")
	}
	for room, want := range map[uint64]error{0: errNoRoom, need - 1: errNoRoom, need: nil, need + 1: nil} {
		table, err := x.open(info, room)
		if !errors.Is(err, want) {
			t.Errorf("%d bytes needed, room for %d: %v, want %v", need, room, err, want)
		}
		if err == nil {
			table.release()
		}
	}
}
