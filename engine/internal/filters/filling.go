package filters

import (
	"cmp"
	"slices"

	"github.com/hapax-dev/hapax/weekbucket"
)

// A filling adds hashes in the background to filters that no other goroutine uses. It adds the
// hashes of one week in order.
type filling struct {
	limit int          // maximum number of hashes in a part
	part  *fillingPart // the part that add fills
	parts chan *fillingPart
	free  chan *fillingPart
	done  chan struct{}
}

// A fillingPart has the hashes of consecutive runs, each of one week.
type fillingPart struct {
	hashes []uint64
	runs   []fillingRun
}

type fillingRun struct {
	week       weekbucket.Week
	begin, end int // indices of the hashes
}

const (
	// The more hashes are added at once, the more of them share a part of a filter. There are two
	// parts, and AddAll sorts a copy of one of them; together they use half as much memory as the
	// filters.
	fillingPerBytes  = 2 * 3 * 8
	minFillingHashes = 1 << 15
	maxFillingHashes = 1 << 22
)

func startFilling(s *weeks) *filling {
	held, _, _ := s.size()
	f := &filling{
		limit: int(min(max(held/fillingPerBytes, minFillingHashes), maxFillingHashes)),
		part:  &fillingPart{}, parts: make(chan *fillingPart), free: make(chan *fillingPart, 2), done: make(chan struct{}),
	}
	f.free <- &fillingPart{}
	go func() {
		defer close(f.done)
		for part := range f.parts {
			part.addTo(s)
			part.hashes, part.runs = part.hashes[:0], part.runs[:0]
			f.free <- part
		}
	}()
	return f
}

// add adds a run in its journal encoding. It returns the run's hashes, which are valid until the
// next call.
func (f *filling) add(week weekbucket.Week, run []byte) []uint64 {
	p := f.part
	if n := len(p.hashes); n > 0 && (n+len(run)/8 > f.limit || len(p.runs) > f.limit/8) {
		f.parts <- p
		p = <-f.free
		f.part = p
	}
	begin := len(p.hashes)
	if n := begin + len(run)/8; n > cap(p.hashes) {
		p.hashes = slices.Grow(p.hashes, max(len(run)/8, min(2*begin, f.limit)-begin))
	}
	p.hashes = appendHashes(p.hashes, run)
	if n := len(p.runs); n > 0 && p.runs[n-1].week == week {
		p.runs[n-1].end = len(p.hashes)
	} else {
		p.runs = append(p.runs, fillingRun{week, begin, len(p.hashes)})
	}
	return p.hashes[begin:]
}

// addTo adds the hashes, week by week.
func (p *fillingPart) addTo(s *weeks) {
	slices.SortStableFunc(p.runs, func(a, b fillingRun) int { return cmp.Compare(a.week, b.week) })
	var gathered []uint64
	for runs := p.runs; len(runs) > 0; {
		week, hashes := runs[0].week, p.hashes[runs[0].begin:runs[0].end]
		n := 1
		for n < len(runs) && runs[n].week == week {
			n++
		}
		if n > 1 {
			gathered = gathered[:0]
			for _, r := range runs[:n] {
				gathered = append(gathered, p.hashes[r.begin:r.end]...)
			}
			hashes = gathered
		}
		s.of(week).AddAll(hashes)
		runs = runs[n:]
	}
}

// finish waits until all hashes are in the filters.
func (f *filling) finish() {
	f.parts <- f.part
	close(f.parts)
	<-f.done
}
