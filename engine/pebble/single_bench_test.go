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

// BenchmarkSingleClaims claims new events one by one from 64 goroutines, and also reports the time
// of a write of 512 bytes with fsync on the same disk.
//
//	go test ./engine/pebble -run - -bench SingleClaims -benchtime 100000x
func BenchmarkSingleClaims(b *testing.B) {
	e := benchEngine(b)
	var n atomic.Uint64
	took := make([]time.Duration, b.N)
	b.SetParallelism(max(64/runtime.GOMAXPROCS(0), 1))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			start, i := time.Now(), n.Add(1)
			if _, err := e.TryClaim(context.Background(), benchEvent(i)); err != nil {
				b.Error(err)
			}
			took[i-1] = time.Since(start)
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "claims/s")
	syncs := timesOfSync(b)
	percentile := func(times []time.Duration, percent int) float64 {
		slices.Sort(times)
		return float64(times[len(times)*percent/100].Nanoseconds()) / 1e3
	}
	b.ReportMetric(percentile(took, 99), "µs-p99")
	b.ReportMetric(percentile(syncs, 50), "µs-fsync-p50")
	b.ReportMetric(percentile(syncs, 99), "µs-fsync-p99")
}

func timesOfSync(b *testing.B) []time.Duration {
	f, err := os.Create(b.TempDir() + "/fsync")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err = f.Write(make([]byte, 1<<20)); err == nil {
		err = f.Sync()
	}
	times := make([]time.Duration, 1000)
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
	return times
}
