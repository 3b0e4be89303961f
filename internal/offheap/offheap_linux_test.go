package offheap

import (
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

type owner struct {
	_    [64]byte
	free func()
}

func address[T any](s []T) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s))) }

// isMapped reports whether all pages of some memory are mapped.
func isMapped(addr, size uintptr) bool {
	pages := make([]byte, size/uintptr(syscall.Getpagesize()))
	_, _, errno := syscall.Syscall(syscall.SYS_MINCORE, addr, size, uintptr(unsafe.Pointer(&pages[0])))
	return errno != syscall.ENOMEM
}

// collect collects garbage until done, and reports whether it is.
func collect(done func() bool) bool {
	for range 500 {
		runtime.GC()
		if done() {
			return true
		}
		time.Sleep(10 * time.Millisecond) // cleanups run in a goroutine of their own
	}
	return false
}

func TestLargeSlicesAreOutsideOfTheHeap(t *testing.T) {
	allocated := func(n uint64) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s, free := Make[uint64](new(owner), n)
		runtime.ReadMemStats(&after)
		if uint64(len(s)) != n {
			t.Fatalf("a slice has %d elements, want %d", len(s), n)
		}
		for i := range s {
			if s[i] != 0 {
				t.Fatalf("element %d of %d is %d", i, n, s[i])
			}
			s[i] = 1
		}
		free()
		return after.TotalAlloc - before.TotalAlloc
	}
	for range 3 { // memory that was in use before is zero, too
		if got := allocated(minBytes / 8); got > 10_000 {
			t.Errorf("%d bytes of the heap for a large slice", got)
		}
	}
	if got := allocated(minBytes/8 - 1); got < minBytes-8 {
		t.Errorf("%d bytes of the heap for a small slice", got)
	}
	if got := allocated(0); got > 10_000 {
		t.Errorf("%d bytes of the heap for an empty slice", got)
	}
}

func TestASliceIsMappedUntilItIsFreed(t *testing.T) {
	s, free := Make[byte](new(owner), minBytes)
	addr := address(s)
	if !isMapped(addr, minBytes) {
		t.Fatal("it is not mapped")
	}
	free()
	if isMapped(addr, minBytes) {
		t.Fatal("it is mapped after free")
	}
}

func TestASliceIsMappedUntilItsOwnerIsGarbage(t *testing.T) {
	o := new(owner)
	s, free := Make[byte](o, minBytes)
	o.free = free // as users have it, and refers to its owner
	addr := address(s)
	for range 3 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
		if !isMapped(addr, minBytes) {
			t.Fatal("it is not mapped, but its owner is reachable")
		}
	}
	runtime.KeepAlive(o)
	if !collect(func() bool { return !isMapped(addr, minBytes) }) {
		t.Error("it is mapped, but its owner is garbage")
	}
}

// Stop has no effect on a cleanup that is queued: free would unmap what has the address by then.
func TestASliceIsMappedWhileItCanBeFreed(t *testing.T) {
	s, free := Make[byte](new(owner), minBytes)
	addr := address(s)
	for range 3 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
		if !isMapped(addr, minBytes) {
			t.Fatal("it is not mapped, and free was not called")
		}
	}
	free()
	if isMapped(addr, minBytes) {
		t.Fatal("it is mapped after free")
	}
	next := new(owner)
	s, _ = Make[byte](next, minBytes)
	if address(s) != addr {
		t.Skip("the next slice is elsewhere")
	}
	free()
	if !isMapped(addr, minBytes) {
		t.Error("free, called again, has unmapped the next slice")
	}
	runtime.KeepAlive(next)
}

// The system gives memory that was freed to the next slice.
func TestAFreedSliceIsNotUnmappedAgain(t *testing.T) {
	first, next := new(owner), new(owner)
	s, free := Make[byte](first, minBytes)
	addr := address(s)
	free()
	runtime.KeepAlive(first)
	s, _ = Make[byte](next, minBytes)
	if address(s) != addr {
		t.Skip("the next slice is elsewhere")
	}
	gone := make(chan struct{})
	runtime.AddCleanup(new(owner), func(int) { close(gone) }, 0)
	if !collect(func() bool {
		select {
		case <-gone:
			return true
		default:
			return false
		}
	}) {
		t.Fatal("nothing was collected")
	}
	if !isMapped(addr, minBytes) {
		t.Fatal("it is not mapped, but its owner is reachable")
	}
	runtime.KeepAlive(next)
}
