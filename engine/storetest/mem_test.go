package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
)

func TestMemKeepsTheContract(t *testing.T) { Run(t, NewDisk().Harness()) }

func TestLargestRecordHasRoomForTheDataOfAnEngine(t *testing.T) {
	if largestRecord < limits.DataBytes+1024 {
		t.Errorf("the suite writes records of %d bytes; the data of a claim may have %d", largestRecord, limits.DataBytes)
	}
}

func oneClaim(seq uint64) *storage.Batch {
	return &storage.Batch{Seq: seq, Claims: []storage.ClaimWrite{claim(bucket("a", week), fmt.Sprint(seq), "x")}}
}

func mustApply(t *testing.T, m *Mem, seq uint64) (wait func() error) {
	t.Helper()
	wait, err := m.Apply(oneClaim(seq))
	if err != nil {
		t.Fatal(err)
	}
	return wait
}

func has(t *testing.T, m *Mem, seq uint64) bool {
	t.Helper()
	_, found, err := m.Claim(key(bucket("a", week), fmt.Sprint(seq)))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestHeldWaitReturnsOnlyWhenLetGo(t *testing.T) {
	m := NewMem(storage.Identity{})
	m.HoldSyncs()
	var returned atomic.Int32
	done := make(chan struct{})
	waits := []func() error{mustApply(t, m, 1), mustApply(t, m, 2), mustApply(t, m, 3)}
	step := make(chan struct{})
	go func() {
		for _, wait := range waits {
			if err := wait(); err != nil {
				t.Error(err)
			}
			returned.Add(1)
			step <- struct{}{}
		}
		close(done)
	}()
	m.AwaitHeld()
	if returned.Load() != 0 || m.Unsynced() != 3 || has(t, m.CrashClone(0), 1) {
		t.Fatal("a held sync has happened")
	}
	m.StepSync()
	<-step
	m.AwaitHeld()
	if returned.Load() != 1 || m.Unsynced() != 2 || !has(t, m.CrashClone(0), 1) || has(t, m.CrashClone(0), 2) {
		t.Fatal("StepSync let another number than one go")
	}
	m.ReleaseSyncs()
	<-step
	<-step
	<-done
	if m.Unsynced() != 0 || m.Calls(OpWait) != 3 || m.Calls(OpApply) != 3 {
		t.Fatal("ReleaseSyncs has not let all go")
	}
}

func TestCrashCloneKeepsTheGivenNumberOfUnsyncedBatches(t *testing.T) {
	m := NewMem(storage.Identity{})
	if err := mustApply(t, m, 1)(); err != nil {
		t.Fatal(err)
	}
	mustApply(t, m, 2)
	mustApply(t, m, 3)
	for keep := range 4 {
		c := m.CrashClone(keep)
		if want := uint64(min(1+keep, 3)); c.LastSeq() != want || !has(t, c, want) || has(t, c, want+1) {
			t.Errorf("CrashClone(%d) has batch %d, want %d", keep, c.LastSeq(), want)
		}
		if c.Identity() != m.Identity() {
			t.Errorf("a crash has changed the identity")
		}
	}
}

func TestCrashLosesWhatWasNotWaitedFor(t *testing.T) {
	m := NewMem(storage.Identity{UUID: [16]byte{1}, Incarnation: 7, Seed: 3})
	if err := mustApply(t, m, 1)(); err != nil {
		t.Fatal(err)
	}
	wait := mustApply(t, m, 2)
	after := m.Crash()
	if err := wait(); !errors.Is(err, ErrPowerCut) {
		t.Errorf("a wait after the crash: %v", err)
	}
	if _, _, err := m.Claim([]byte("x")); !errors.Is(err, ErrPowerCut) {
		t.Errorf("a read after the crash: %v", err)
	}
	if after.LastSeq() != 1 || !has(t, after, 1) || has(t, after, 2) {
		t.Errorf("after the crash LastSeq is %d", after.LastSeq())
	}
	if after.Identity().Incarnation != 7 {
		t.Errorf("the identity is %v", after.Identity())
	}
	mustApply(t, after, 2)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if !has(t, after, 2) {
		t.Error("closing the dead store has touched the living one")
	}
}

func TestFailAtFailsThatCallAndPoisonsIfItWrites(t *testing.T) {
	boom := errors.New("boom")
	m := NewMem(storage.Identity{})
	m.FailAt(OpClaim, 2, boom)
	has(t, m, 1)
	if _, _, err := m.Claim([]byte("x")); !errors.Is(err, boom) {
		t.Errorf("the second read: %v", err)
	}
	has(t, m, 1)

	m.FailAt(OpWait, 2, boom)
	w1, w2, w3 := mustApply(t, m, 1), mustApply(t, m, 2), mustApply(t, m, 3)
	if err := w1(); err != nil {
		t.Errorf("the first wait: %v", err)
	}
	if err := w2(); !errors.Is(err, boom) {
		t.Errorf("the second wait: %v", err)
	}
	if err := w3(); !errors.Is(err, boom) {
		t.Errorf("the wait after a failed one: %v", err)
	}
	if _, err := m.Apply(oneClaim(4)); !errors.Is(err, boom) {
		t.Errorf("Apply after a failed wait: %v", err)
	}
	if c := m.CrashClone(0); c.LastSeq() != 1 {
		t.Errorf("after a failed wait and a crash LastSeq is %d", c.LastSeq())
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestFailedDropLeavesHalf(t *testing.T) {
	m := NewMem(storage.Identity{})
	for seq := range uint64(6) {
		if err := mustApply(t, m, seq+1)(); err != nil {
			t.Fatal(err)
		}
	}
	m.FailAt(OpDrop, 1, errors.New("boom"))
	if err := m.Drop([]storage.Bucket{bucket("a", week)}); err == nil {
		t.Fatal("Drop has not failed")
	}
	left := 0
	for seq := range uint64(6) {
		if has(t, m, seq+1) != has(t, m.CrashClone(0), seq+1) {
			t.Errorf("the crash changes claim %d", seq+1)
		}
		if has(t, m, seq+1) {
			left++
		}
	}
	if left != 3 {
		t.Errorf("%d of 6 claims are left", left)
	}
}

func TestMemPanicsWhenItsCallerBreaksTheContract(t *testing.T) {
	for name, f := range map[string]func(m *Mem){
		"a gap in Seq":        func(m *Mem) { _, _ = m.Apply(oneClaim(2)) },
		"a wait called twice": func(m *Mem) { w := mustApply(t, m, 1); _ = w(); _ = w() },
		"waits out of order":  func(m *Mem) { mustApply(t, m, 1); _ = mustApply(t, m, 2)() },
		"a call after Close":  func(m *Mem) { _ = m.Close(); _ = m.LastSeq(); _, _, _ = m.Claim(nil) },
		"a bad sidecar name":  func(m *Mem) { _ = m.WriteSidecar("../x", writerOf(nil)) },
		"a dropped bucket":    func(m *Mem) { _ = m.Drop([]storage.Bucket{bucket("a", week)}); mustApply(t, m, 1) },
		"two Applies at a time": func(m *Mem) {
			m.Before(OpApply, func(int) error { mustApply(t, m, 1); return nil })
			mustApply(t, m, 1)
		},
		"a key that is no claim": func(m *Mem) { _, _ = m.Apply(&storage.Batch{Seq: 1, Claims: []storage.ClaimWrite{{Key: []byte("x")}}}) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f(NewMem(storage.Identity{}))
		})
	}
}
