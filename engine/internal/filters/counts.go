package filters

import (
	"maps"

	"github.com/hapax-dev/hapax/weekbucket"
)

// A Bucket identifies the claims of a scope, by its number, in a week.
type Bucket struct {
	Scope uint64
	Week  weekbucket.Week
}

// A Count is the number of claims in a bucket and the XOR of their hashes. During a rebuild it is
// the change since the scan began; Claims wraps around if more claims were removed than put.
type Count struct {
	Claims uint64
	XOR    uint64
}

// Add adds a claim.
func (c *Count) Add(hash uint64) {
	c.Claims++
	c.XOR ^= hash
}

// counts has the count of each bucket. Only the committer uses it.
type counts struct {
	buckets map[Bucket]*Count
	last    *Count // count of lastOf, in buckets; nil if it must be looked up
	lastOf  Bucket
	claims  uint64 // sum of all counts
}

// merge adds to the count of a bucket. The number of claims wraps around, so adding 2^64-1
// subtracts one.
func (s *counts) merge(b Bucket, by Count) {
	c := s.last
	if c == nil || s.lastOf != b {
		if c = s.buckets[b]; c == nil {
			c = new(Count)
			s.buckets[b] = c
		}
		s.last, s.lastOf = c, b
	}
	c.Claims += by.Claims
	c.XOR ^= by.XOR
	s.claims += by.Claims
}

// dropBefore removes the counts of buckets in weeks that their scopes do not retain.
func (s *counts) dropBefore(of func(Bucket) weekbucket.Week) {
	s.last = nil
	maps.DeleteFunc(s.buckets, func(b Bucket, c *Count) bool {
		if b.Week >= of(b) {
			return false
		}
		s.claims -= c.Claims
		return true
	})
}

// forget removes the count of a bucket.
func (s *counts) forget(b Bucket) {
	if c := s.buckets[b]; c != nil {
		s.claims -= c.Claims
		s.last = nil
		delete(s.buckets, b)
	}
}

// copy returns a copy of the counts.
func (s *counts) copy() map[Bucket]Count {
	current := make(map[Bucket]Count, len(s.buckets))
	for b, c := range s.buckets {
		if *c != (Count{}) {
			current[b] = *c
		}
	}
	return current
}

func (s *counts) reset() {
	clear(s.buckets)
	s.claims, s.last = 0, nil
}
