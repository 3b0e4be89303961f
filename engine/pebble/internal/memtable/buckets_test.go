package memtable

import (
	"maps"
	"testing"
)

// What happens while all buckets are being found takes precedence over the result.
func TestBucketsChangeWhileTheyAreFound(t *testing.T) {
	const a, b, c = "bucket a", "bucket b", "bucket c"
	l := newBuckets()
	clone := l.clone(nil)
	l.drop([]string{a})
	l.complement(&clone, []string{a, b})
	if l.Complete || len(l.Claimed) > 0 {
		t.Errorf("a bucket was dropped meanwhile: %+v", l)
	}
	clone = l.clone(nil)
	l.add(&Table{buckets: []tableBucket{{prefix: b, removed: 1}, {prefix: c, live: 1}}})
	l.complement(&clone, []string{a, b})
	want := map[string]bool{a: true, b: false, c: true}
	if !l.Complete || !maps.Equal(l.Claimed, want) {
		t.Errorf("%+v, want %v", l, want)
	}
}
