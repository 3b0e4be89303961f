package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
)

// Random writes, savepoints and scans, compared with a map for each savepoint.
func TestTxWritesAgreeWithAMap(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var s txWrites
		type point struct {
			n    int
			then map[string]string
		}
		now, points := map[string]string{}, []point{{0, map[string]string{}}}
		for step := range 300 {
			switch op := rnd.IntN(20); {
			case op < 14:
				key, value := fmt.Sprint("h", rnd.IntN(40)), fmt.Sprint(step)
				s.add(txWrite{StateWrite: storage.StateWrite{Key: []byte(key), Value: []byte(value)}}, s.find([]byte(key)))
				now[key] = value
			case op < 16:
				points = append(points, point{len(s.list), maps.Clone(now)})
			case op < 17:
				i := rnd.IntN(len(points))
				s.undo(points[i].n)
				now = maps.Clone(points[i].then)
				points = points[:i+1]
			default:
				checkWritesIn(t, &s, now, rnd)
			}
			if len(s.latest) != len(now) || len(s.slots) != len(now) || len(s.sorted) > len(now) {
				t.Fatalf("seed %d: %d keys, %d of them found by name, %d in order, want %d", seed, len(s.latest), len(s.slots), len(s.sorted), len(now))
			}
			for key, value := range now {
				if i := s.find([]byte(key)); i < 0 || !s.isLatest(i) || string(s.list[i].StateWrite.Value) != value || s.list[i].name != key {
					t.Fatalf("seed %d: %s is at %d, want %s", seed, key, i, value)
				}
			}
		}
		if s.reset(); len(s.slots)+len(s.list)+len(s.latest)+len(s.sorted) != 0 {
			t.Fatal("something is left")
		}
	}
}

func checkWritesIn(t *testing.T, s *txWrites, now map[string]string, rnd *rand.Rand) {
	t.Helper()
	span := storage.Span{Prefix: []byte([]string{"h", "h1", "h2", "i"}[rnd.IntN(4)])}
	if rnd.IntN(2) == 0 {
		span.From = fmt.Append(nil, string(span.Prefix), rnd.IntN(10))
	}
	var end []byte
	if rnd.IntN(2) == 0 {
		end = fmt.Append(nil, string(span.Prefix), rnd.IntN(10))
	}
	limit := 1 + rnd.IntN(20)
	var want []string
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if span.Holds([]byte(key)) && (end == nil || key < string(end)) {
			want = append(want, key+"="+now[key])
		}
	}
	wantEnd := end
	if len(want) > limit {
		want = want[:limit]
		key, _, _ := strings.Cut(want[limit-1], "=")
		wantEnd = afterKey([]byte(key))
	}
	writes, upTo := s.in(span, end, limit)
	var got []string
	for _, w := range writes {
		got = append(got, w.name+"="+string(w.StateWrite.Value))
	}
	if !slices.Equal(got, want) || string(upTo) != string(wantEnd) {
		t.Fatalf("%+v up to %q, %d of them: %q up to %q, want %q up to %q", span, end, limit, got, upTo, want, wantEnd)
	}
}
