package engine

import (
	"cmp"
	"slices"
)

// A Savepoint is a point in a transaction that it can go back to.
type Savepoint struct {
	tx     *txStatus
	serial uint64
	done   progress
}

// savepoints are the savepoints of a transaction.
type savepoints struct {
	last   uint64    // the serial number of the last one
	undone []serials // those that are no longer valid, increasing
}

// serials are those after the first one, up to the last one.
type serials struct{ after, last uint64 }

// take returns the serial number of a new savepoint.
func (p *savepoints) take() uint64 {
	p.last++
	return p.last
}

// progress is the amount of a transaction's work so far.
type progress struct {
	claims, keys, near, altered, writes int

	verdicts  int // that are observed
	effective verdictCounts
}

// valid reports whether no rollback went to a point before the savepoint.
func (p *savepoints) valid(serial uint64) bool {
	i, _ := slices.BinarySearchFunc(p.undone, serial, func(u serials, serial uint64) int { return cmp.Compare(u.last, serial) })
	return i == len(p.undone) || serial <= p.undone[i].after
}

// invalidate makes all savepoints invalid that were taken after the given one.
func (p *savepoints) invalidate(after uint64) {
	n := len(p.undone)
	for n > 0 && p.undone[n-1].after >= after {
		n--
	}
	if p.undone = p.undone[:n]; after < p.last {
		p.undone = append(p.undone, serials{after, p.last})
	}
}
