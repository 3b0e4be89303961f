// Package offheap makes large slices outside of Go's heap.
//
// The garbage collector lets the heap grow in proportion to what is in use. Large slices without
// pointers, which live long, would make it keep as much memory again for garbage.
package offheap

import (
	"math"
	"runtime"
	"sync"
	"unsafe"
)

// minBytes is the size of the smallest slice that is mapped. The C library's malloc has the same.
const minBytes = 1 << 17

// Make returns n zeroed elements, which have no pointers, for the methods of owner. On Linux, slices of
// 128 KiB and more are mapped (mmap): free unmaps them, and is to be called when nothing uses an
// element any more; a second call does nothing. They are also unmapped some time after neither owner nor
// free is reachable, so code that uses an element keeps owner reachable (runtime.KeepAlive) until then.
// Smaller slices, and those that cannot be mapped, are in the heap.
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
		// Stop does not stop a cleanup that is queued, and none is while owner is reachable. That
		// cleanup would unmap a later slice, which the system may have put at the same address.
		runtime.KeepAlive(owner)
		unmap(b)
	})
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n), free // a page is aligned for any T
}
