package pebble

import (
	"context"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkSingleClaims claims new events one by one from 32 goroutines, and also reports the
// median time of a write of 512 bytes with fsync on the same disk.
//
//	go test ./engine/pebble -run - -bench SingleClaims -benchtime 100000x
func BenchmarkSingleClaims(b *testing.B) {
	e := benchEngine(b)
	var n atomic.Uint64
	b.SetParallelism(max(32/runtime.GOMAXPROCS(0), 1))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := e.TryClaim(context.Background(), benchEvent(n.Add(1))); err != nil {
				b.Error(err)
			}
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "claims/s")
	b.ReportMetric(float64(medianSync(b).Nanoseconds())/1e3, "µs/fsync")
}

func medianSync(b *testing.B) time.Duration {
	f, err := os.Create(b.TempDir() + "/fsync")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err = f.Write(make([]byte, 1<<20)); err == nil {
		err = f.Sync()
	}
	times := make([]time.Duration, 200)
	for i := range times {
		start := time.Now()
		if err == nil {
			_, err = f.WriteAt(make([]byte, 512), int64(512*i))
		}
		if err == nil {
			err = f.Sync()
		}
		times[i] = time.Since(start)
	}
	if err != nil {
		b.Fatal(err)
	}
	slices.Sort(times)
	return times[len(times)/2]
}
