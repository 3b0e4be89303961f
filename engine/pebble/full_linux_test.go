package pebble_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A store that has filled its disk opens once there is room for its log, however often it was tried
// before: what a failed Open has written does not take the room. Then a week can be dropped.
func TestAStoreOnAFullDiskOpensOnceThereIsRoomForItsLog(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Skip("a small file system needs root: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	size := func(mebibytes int) {
		t.Helper()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%dm", mebibytes)); err != nil {
			t.Fatal(err)
		}
	}
	const pending = 2 << 20
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	open := func() (*engine.Engine, error) {
		s, err := pebble.Open(filepath.Join(dir, "s"), pebble.Options{PendingBytes: pending})
		if err != nil {
			return nil, err
		}
		return engine.Open(s, engine.Options{Clock: func() time.Time { return now }, ExpectedPerWeek: 1000})
	}
	e, err := open()
	if err != nil {
		t.Fatal(err)
	}
	events := func(from int) (list []engine.Event) {
		for i := range 1000 {
			at := now.AddDate(0, 0, -7*(1+from/100_000%3))
			list = append(list, engine.Event{Scope: "s", ID: fmt.Appendf(nil, "%020d", (from+i)*7919), Time: at, Origin: engine.Origin{Topic: "t"}})
		}
		return list
	}
	claimed := 0
	for err == nil {
		if _, err = e.TryClaimBatch(t.Context(), events(claimed)); err == nil {
			claimed += 1000
		}
	}
	if !errors.Is(err, syscall.ENOSPC) || claimed < 10_000 {
		t.Fatalf("after %d claims: %v", claimed, err)
	}
	_ = e.Close()
	const most = 4 * 2 * pending >> 20 // three memtables, and one in addition, as tables
	for room := 0; ; room++ {
		size(24 + room)
		if e, err = open(); err == nil {
			t.Logf("opened with %d MiB more", room)
			break
		}
		if room == most {
			t.Fatalf("with %d MiB more: %v", room, err)
		}
	}
	for _, ev := range [][]engine.Event{events(0), events(claimed - 1000)} {
		rs, err := e.TryClaimBatch(t.Context(), ev)
		for _, r := range rs {
			if r.Verdict != engine.Duplicate {
				t.Fatalf("%v, %v", r.Verdict, err)
			}
		}
	}
	week, _ := weekbucket.Of(now.AddDate(0, 0, -21))
	for e.OldestWeek() <= week {
		if _, err := e.DropWeek(t.Context(), e.OldestWeek()); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(e.Reclaimed(t.Context()), e.Close()); err != nil {
		t.Fatal(err)
	}
}
