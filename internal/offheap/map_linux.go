package offheap

import "syscall"

// mapped returns zeroed memory of the system, nil if there is none.
func mapped(size int) []byte {
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	return b
}

// unmap returns memory to the system. Nothing uses it any more.
func unmap(b []byte) { _ = syscall.Munmap(b) } // it was mapped
