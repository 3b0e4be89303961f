package crc32c_test

import (
	"testing"

	"github.com/hapax-dev/hapax/internal/crc32c"
)

// The sums are those of RFC 3720, B.4.
func TestChecksum(t *testing.T) {
	ascending := make([]byte, 32)
	for i := range ascending {
		ascending[i] = byte(i)
	}
	for _, c := range []struct {
		b    []byte
		want uint32
	}{
		{make([]byte, 32), 0x8a9136aa},
		{ascending, 0x46dd794e},
	} {
		h := crc32c.New()
		_, _ = h.Write(c.b)
		halves := crc32c.Update(crc32c.Checksum(c.b[:7]), c.b[7:])
		if got := crc32c.Checksum(c.b); got != c.want || h.Sum32() != c.want || halves != c.want {
			t.Errorf("checksums of %x are %#x, %#x and %#x, want %#x", c.b, got, h.Sum32(), halves, c.want)
		}
	}
}
