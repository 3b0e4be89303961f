package bolt

import (
	"errors"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A disk that cannot sync: Apply must sync, return the error, and not have written the meta page
// before. This tests the first of a transaction's two syncs. It does not test the second one, after
// the meta page: one flag controls both, see TestTheStoreSyncs.
func TestADiskThatCannotSyncIsAnError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, dir, Options{LockTimeout: shortLock})
	mustApply(t, s, &storage.Batch{Seq: 1})
	before := s.core.txid.Load()

	type result struct{ denied, applied error }
	results := make(chan result)
	go func() {
		// Only this thread cannot sync, and it ends with the goroutine that is locked to it.
		runtime.LockOSThread()
		r := result{denied: denySync()}
		if r.denied == nil {
			_, r.applied = s.Apply(&storage.Batch{Seq: 2})
		}
		results <- r
	}()
	r := <-results
	if r.denied != nil {
		s.Close()
		t.Skipf("this machine lets nobody filter system calls: %v", r.denied)
	}
	if !errors.Is(r.applied, ErrFailed) || !errors.Is(r.applied, syscall.EIO) {
		t.Errorf("Apply on a disk that cannot sync: %v", r.applied)
	}
	if newest, _, err := pages.ReadMetas(s.core.file, s.core.pageSize); err != nil || newest.ID != before {
		t.Errorf("the meta page of transaction %d is written, before its pages were synced (%v)", newest.ID, err)
	}
	if _, err := s.Apply(&storage.Batch{Seq: 2}); !errors.Is(err, ErrFailed) {
		t.Errorf("Apply after a failed one: %v", err)
	}
	s.Close()
	s = mustOpen(t, dir, Options{LockTimeout: shortLock})
	if s.LastSeq() != 1 {
		t.Errorf("LastSeq is %d, want 1", s.LastSeq())
	}
	s.Close()
}

// denySync makes fdatasync fail with EIO in the calling thread, permanently.
func denySync() error {
	const (
		prSetNoNewPrivs, prSetSeccomp, modeFilter = 38, 22, 2
		retErrno, retAllow                        = 0x00050000, 0x7fff0000
	)
	filter := []syscall.SockFilter{
		{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: 0}, // the system call's number
		{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, Jf: 1, K: syscall.SYS_FDATASYNC},
		{Code: syscall.BPF_RET | syscall.BPF_K, K: retErrno | uint32(syscall.EIO)},
		{Code: syscall.BPF_RET | syscall.BPF_K, K: retAllow},
	}
	prog := syscall.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); e != 0 {
		return e
	}
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetSeccomp, modeFilter, uintptr(unsafe.Pointer(&prog)), 0, 0, 0); e != 0 {
		return e
	}
	return nil
}
