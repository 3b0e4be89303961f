package bloom

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"
	"unsafe"
)

// largeKeys are so many that the filter for them is mapped.
const largeKeys = 1 << 20 / blockBytes * blockBits / defaultBitsPerKey

// isMapped reports whether all pages from addr on are mapped.
func isMapped(addr, size uintptr) bool {
	pages := make([]byte, size/uintptr(syscall.Getpagesize()))
	_, _, errno := syscall.Syscall(syscall.SYS_MINCORE, addr, size, uintptr(unsafe.Pointer(&pages[0])))
	return errno != syscall.ENOMEM
}

func TestBlocksAreMappedUntilTheFilterIsGarbage(t *testing.T) {
	addr, size := useMapped(t)
	for range 500 {
		runtime.GC()
		if !isMapped(addr, size) {
			return
		}
		time.Sleep(10 * time.Millisecond) // cleanups run in a goroutine of their own
	}
	t.Error("the blocks of a filter that is garbage remain mapped")
}

// useMapped uses a large filter, and returns where its blocks were.
func useMapped(t *testing.T) (addr, size uintptr) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f := New(Options{Expected: 64 * largeKeys})
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("a filter of %d bytes has allocated %d bytes of the heap", f.Bytes(), grown)
	}
	blocks := f.newest.Load().blocks
	addr, size = uintptr(unsafe.Pointer(&blocks[0])), uintptr(f.Bytes())
	for i := range uint64(largeKeys) {
		f.Add(mix(i))
	}
	for range 3 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
		if !isMapped(addr, size) {
			t.Fatal("the blocks of a filter in use are not mapped")
		}
	}
	for i := range uint64(largeKeys) {
		if !f.MayContain(mix(i)) {
			t.Fatalf("hash %d is not in the filter", i)
		}
	}
	return addr, size
}

// Filters are replaced while others read them, as when a week is dropped.
func TestAFilterIsReadWhileItBecomesGarbage(t *testing.T) {
	var current atomic.Pointer[Filter]
	next := func() *Filter {
		f := New(Options{Expected: largeKeys})
		for i := range uint64(1000) {
			f.Add(mix(i))
		}
		return f
	}
	current.Store(next())
	var stop atomic.Bool
	var users sync.WaitGroup
	for range 2 {
		users.Go(func() {
			hashes := make([]uint64, 100)
			for i := uint64(0); !stop.Load(); i++ {
				for k := range hashes {
					hashes[k] = mix((i + uint64(k)) % 1000)
				}
				current.Load().Prefetch(hashes)
				for _, h := range hashes {
					if !current.Load().MayContain(h) {
						t.Error("a hash is not in the filter")
						return
					}
				}
				current.Load().Add(mix(i))
				if _, err := current.Load().WriteTo(io.Discard); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 50 {
		current.Store(next())
		runtime.GC()
	}
	stop.Store(true)
	users.Wait()
}

// The goroutines that decode pieces of a snapshot may run longer than Read needs its layers.
func TestReadThatFailsLeavesNoReaderOfItsBlocks(t *testing.T) {
	f := New(Options{Expected: largeKeys})
	f.Add(mix(1))
	var b bytes.Buffer
	if _, err := f.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	for i := range 50 {
		part := io.MultiReader(bytes.NewReader(b.Bytes()[:b.Len()*(i+1)/51]), iotest.ErrReader(broken))
		if _, err := Read(part, int64(b.Len()), Options{}); !errors.Is(err, broken) {
			t.Fatalf("error %v, want %v", err, broken)
		}
		runtime.GC()
	}
}
