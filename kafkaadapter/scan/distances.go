package scan

import (
	"math"
	"math/bits"
	"time"
)

// distances is a histogram of milliseconds. Values below 128 have their own buckets, and from there
// each power of two has 64.
type distances struct {
	counts [128 + 56*64]int64
	n, max int64
}

// longest is the longest distance in milliseconds that is counted as it is: about 292 years.
const longest = int64(math.MaxInt64 / time.Millisecond)

func (d *distances) add(ms int64) {
	ms = min(ms, longest)
	d.counts[bucketOf(ms)]++
	d.n++
	d.max = max(d.max, ms)
}

func bucketOf(ms int64) int {
	if ms < 128 {
		return int(ms)
	}
	shift := bits.Len64(uint64(ms)) - 7
	return 128 + (shift-1)*64 + int(ms>>shift) - 64
}

// most returns the largest value of a bucket.
func most(bucket int) int64 {
	if bucket < 128 {
		return int64(bucket)
	}
	shift := (bucket-128)/64 + 1
	return int64(((bucket-128)%64+64+1)<<shift) - 1
}

// covering returns the least known value that is not exceeded by this part of all values.
func (d *distances) covering(part float64) time.Duration {
	rest := int64(math.Ceil(part * float64(d.n)))
	for bucket, n := range d.counts {
		if rest -= n; rest <= 0 {
			return time.Duration(min(most(bucket), d.max)) * time.Millisecond
		}
	}
	return time.Duration(d.max) * time.Millisecond
}

func (d *distances) figures() Distances {
	if d.n == 0 {
		return Distances{}
	}
	return Distances{d.n, d.covering(0.5), d.covering(0.99), d.covering(0.999), time.Duration(d.max) * time.Millisecond}
}
