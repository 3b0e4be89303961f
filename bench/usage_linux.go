package bench

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// processTime is the processor time of this process, user and system; 0 if it is unknown.
func processTime() time.Duration { return timeOf(syscall.RUSAGE_SELF) }

// threadTimeOf calls do in a separate thread, and returns its processor time.
func threadTimeOf(do func() error) (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := timeOf(syscall.RUSAGE_THREAD)
	err := do()
	return timeOf(syscall.RUSAGE_THREAD) - before, err
}

func timeOf(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// residentBytes is the resident memory of this process; 0 if it is unknown.
func residentBytes() uint64 {
	b, _ := os.ReadFile("/proc/self/statm") // see proc(5): all pages, resident pages
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseUint(fields[1], 10, 64)
	return pages * uint64(os.Getpagesize())
}
