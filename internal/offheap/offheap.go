// Package offheap makes large slices outside Go's heap.
//
// The garbage collector lets the heap grow in proportion to the memory in use. So large, long-lived
// slices in the heap would let it keep the same amount of memory again for garbage.
package offheap

import (
	"math"
	"runtime"
	"sync"
	"unsafe"
)

// minBytes is the size of the smallest slice that is mapped, the same as in the C library's malloc.
const minBytes = 1 << 17

// Make returns n zeroed elements, which have no pointers, for the methods of owner. On Linux,
// slices of 128 KiB and more are mapped (mmap). Call free to unmap them when no element is used any
// more; a second call does nothing. They are also unmapped some time after neither owner nor free
// is reachable, so code that uses an element keeps owner reachable (runtime.KeepAlive) as long as
// it does. Smaller slices, and those that cannot be mapped, are in the heap.
func Make[T, O any](owner *O, n uint64) (elements []T, free func()) {
	var element T
	size := uint64(unsafe.Sizeof(element))
	if n < minBytes/size || n > math.MaxInt/size {
		return make([]T, n), func() {}
	}
	b := mapped(int(n * size))
	if b == nil {
		return make([]T, n), func() {}
	}
	cleanup := runtime.AddCleanup(owner, unmap, b)
	free = sync.OnceFunc(func() {
		cleanup.Stop()
		// Stop cannot stop a cleanup that is already queued, and none is queued while owner is
		// reachable. A queued cleanup would unmap a later slice that the system may have put at the
		// same address.
		runtime.KeepAlive(owner)
		unmap(b)
	})
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n), free // a page is aligned for any T
}
