package bloom

import (
	"syscall"
	"unsafe"
)

// minMapped is the least number of blocks that are mapped: 1 MiB.
const minMapped = 1 << 14

// mapBlocks returns blocks outside of Go's heap, zeroed, or nil if the heap is to be used. The
// garbage collector lets the heap grow in proportion to what is in use: with the large layers in it,
// as much memory again would be kept for garbage.
func mapBlocks(n uint64) []block {
	const protection, flags = syscall.PROT_READ | syscall.PROT_WRITE, syscall.MAP_ANON | syscall.MAP_PRIVATE
	size := int(n * blockBytes)
	if n < minMapped || size < 0 || uint64(size)/blockBytes != n {
		return nil
	}
	b, err := syscall.Mmap(-1, 0, size, protection, flags)
	if err != nil {
		return nil
	}
	return unsafe.Slice((*block)(unsafe.Pointer(unsafe.SliceData(b))), n) // a page is aligned, and has whole blocks
}

// unmapBlocks returns the memory of mapBlocks, which nothing uses any more, to the system.
func unmapBlocks(blocks []block) {
	first := (*byte)(unsafe.Pointer(unsafe.SliceData(blocks)))
	_ = syscall.Munmap(unsafe.Slice(first, uint64(len(blocks))*blockBytes)) // it was mapped
}
