package offheap

import "syscall"

// minHuge is the size from which huge pages are requested. A huge page has 2 MiB on most
// processors. With small pages, the first use of each page would take most of the time.
const minHuge = 4 << 20

// mapped returns zeroed memory of the system, nil if there is none.
func mapped(size int) []byte {
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	if size >= minHuge {
		_ = syscall.Madvise(b, syscall.MADV_HUGEPAGE) // small pages work too
	}
	return b
}

// unmap returns memory to the system. Nothing uses it any more.
func unmap(b []byte) { _ = syscall.Munmap(b) } // it was mapped
