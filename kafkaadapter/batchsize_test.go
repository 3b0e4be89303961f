package kafkaadapter

import (
	"testing"
	"time"
)

func TestBatchSizeFollowsTheHandlers(t *testing.T) {
	const aim = 100 * time.Millisecond
	for _, tt := range []struct {
		name string
		n    int
		of   int
		took time.Duration
		want int
	}{
		{"fast and full: twice as many", 64, 64, aim / 4, 128},
		{"fast and not full: as before", 64, 63, aim / 4, 64},
		{"in time: as before", 64, 64, aim * 3 / 4, 64},
		{"slow: half", 64, 64, aim + 1, 32},
		{"slow and not full: half of those", 64, 10, aim + 1, 5},
		{"slow alone: alone", 1, 1, time.Hour, 1},
		{"never more than the maximum", 200, 200, 0, 256},
		{"at the most", 256, 256, 0, 256},
	} {
		s := batchSize{n: tt.n, most: 256, aim: aim}
		if s.took(tt.of, tt.took); s.n != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, s.n, tt.want)
		}
	}
}

func TestPausesGrowWithinBounds(t *testing.T) {
	s := newDelays(pauseBounds{Min: 100 * time.Millisecond, Max: time.Second})
	for n, ms := range map[uint32]int{0: 100, 1: 100, 2: 200, 3: 400, 4: 800, 5: 1000, 6: 1000, 1 << 31: 1000} {
		want := time.Duration(ms) * time.Millisecond
		jitter := false
		first := s.attempt(n)
		for range 50 {
			d := s.attempt(n)
			jitter = jitter || d != first
			if d < want/2-1 || d > want*3/2+1 || d > time.Second {
				t.Errorf("pause after attempt %d is %v, want about %v", n, d, want)
			}
		}
		if !jitter {
			t.Errorf("pauses after attempt %d do not vary", n)
		}
	}
}
