package storetest

import (
	"github.com/hapax-dev/hapax/engine/storage"
)

// usageFollows writes incompressible bytes, so that files cannot be smaller than the data.
// DiskBytes may fall meanwhile, because the store removes unneeded files at any time.
func usageFollows(e *env) {
	const size = 500_000
	usage := func() storage.Usage {
		e.Helper()
		u, err := e.s.Usage()
		if err != nil {
			e.Fatalf("Usage: %v", err)
		}
		return u
	}
	atLeast := func(what string, got, want uint64) {
		e.Helper()
		if got < want*9/10 {
			e.Errorf("%s is %d after %d random bytes", what, got, want)
		}
	}
	before := usage()
	e.state(set("x", string(noise(1, size))))
	atLeast("WrittenBytes", usage().WrittenBytes-before.WrittenBytes, size)
	e.settle()
	e.state(set("y", string(noise(2, size))))
	atLeast("DiskBytes", usage().DiskBytes, 2*size)

	e.reopen()
	before = usage()
	if before.WrittenBytes > size {
		e.Errorf("WrittenBytes is %d when a store has just been opened", before.WrittenBytes)
	}
	e.writeSidecar("noise", noise(3, 2*size))
	u := usage()
	atLeast("DiskBytes with a sidecar", u.DiskBytes, 4*size)
	atLeast("WrittenBytes with a sidecar", u.WrittenBytes-before.WrittenBytes, 2*size)
	if u.ReclaimableBytes > u.DiskBytes {
		e.Errorf("ReclaimableBytes is %d of %d", u.ReclaimableBytes, u.DiskBytes)
	}
}

func bucketBytes(e *env) {
	full, other, absent := bucket("a", week), bucket("b", week), bucket("c", week)
	const n = 3000
	e.claims(noisy(full, 1, n)...)
	e.claims(noisy(other, 2, n)...)
	e.settle()
	size := func(b storage.Bucket) uint64 {
		e.Helper()
		n, err := e.s.BucketBytes(b)
		if err != nil {
			e.Fatalf("BucketBytes(%v): %v", b, err)
		}
		return n
	}
	const bytes = n * 100
	for _, b := range []storage.Bucket{full, other} {
		if got := size(b); got < bytes/2 || got > bytes*4 {
			e.Errorf("BucketBytes is %d for %d random bytes in %v", got, bytes, b)
		}
	}
	if got := size(absent); got > bytes/4 {
		e.Errorf("BucketBytes is %d for a bucket without a claim", got)
	}
	e.drop(full)
	if got := size(full); got > bytes/4 {
		e.Errorf("BucketBytes is %d for a dropped bucket", got)
	}
}
