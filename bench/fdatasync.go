package bench

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// measureSync is the median time of a write of 512 bytes to a file in dir that has its size
// already, and fdatasync (or what comes nearest): what the disk asks of everybody who wants to be
// told that something is durable.
func measureSync(dir string) (median time.Duration, err error) {
	const size, rounds = 1 << 20, 200
	f, err := os.CreateTemp(dir, "fdatasync-")
	if err != nil {
		return 0, fmt.Errorf("measuring the disk: %w", err)
	}
	defer func() {
		if cerr := errors.Join(f.Close(), os.Remove(f.Name())); err == nil && cerr != nil {
			err = fmt.Errorf("measuring the disk: %w", cerr)
		}
	}()
	if _, err = f.Write(make([]byte, size)); err == nil {
		err = f.Sync()
	}
	times := make([]time.Duration, 0, rounds)
	block := make([]byte, 512)
	for i := 0; i < rounds && err == nil; i++ {
		start := time.Now()
		if _, err = f.WriteAt(block, int64(i*len(block))); err == nil {
			err = fdatasync(f)
		}
		times = append(times, time.Since(start))
	}
	if err != nil {
		return 0, fmt.Errorf("measuring the disk: %w", err)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}
