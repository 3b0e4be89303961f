package pebble_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
)

// The options for a process with little memory, as docs/tuning.md has them. Other tests of the process
// use memory, too, so that it runs alone, with HAPAX_FOOTPRINT claims.
func TestFootprintOfASmallStore(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("HAPAX_FOOTPRINT"))
	if n == 0 {
		t.Skip("HAPAX_FOOTPRINT is not set to a number of claims")
	}
	store, err := pebble.Open(t.TempDir()+"/store", pebble.Options{CacheBytes: 8 << 20, PendingBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.Open(store, engine.Options{RetentionWeeks: 4, DefaultScope: "footprint"})
	if err != nil {
		t.Fatal(err)
	}
	events := make([]engine.Event, 1000)
	for claimed := 0; claimed < n; claimed += len(events) {
		for i := range events {
			events[i] = engine.Event{ID: []byte(uuid.NewString()), Time: time.Now(), Origin: engine.Origin{Topic: "events"}}
		}
		results, err := e.TryClaimBatch(context.Background(), events)
		if err != nil {
			t.Fatal(err)
		}
		for i := range results {
			if results[i].Verdict != engine.Claimed {
				t.Fatalf("a new event is %v: %v", results[i].Verdict, results[i].Err)
			}
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	peak, err := memory("VmHWM")
	if err != nil {
		t.Skip(err)
	}
	most := uint64(56<<20 + 9*n)
	t.Logf("%d claims: %d MiB resident at most", n, peak>>20)
	if peak > most {
		t.Errorf("want %d MiB at most", most>>20)
	}
}

// A program may try to open a store again and again, while another process has it.
func TestAStoreThatCannotBeOpenedKeepsNoMemory(t *testing.T) {
	before, err := memory("VmSize")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir() + "/store"
	store, err := pebble.Open(dir, pebble.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the memory of garbage is unmapped, too
	const times = 50
	for range times {
		if _, err := pebble.Open(dir, pebble.Options{}); !errors.Is(err, storage.ErrLocked) {
			t.Fatal(err)
		}
	}
	after, err := memory("VmSize")
	if most := before + times/2*pebble.DefaultPendingBytes; err != nil || after > most {
		t.Errorf("%d MiB mapped, before %d: %v", after>>20, before>>20, err)
	}
}

// memory returns a size of the process in proc(5), on Linux: VmHWM is the largest resident memory so
// far, VmSize all that is mapped.
func memory(field string) (n uint64, err error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, after, _ := bytes.Cut(b, []byte(field+":"))
	_, err = fmt.Sscan(string(after), &n)
	return n << 10, err
}
