package engine

import (
	"cmp"
	"slices"
)

// A Savepoint is a point in a transaction to which it can roll back.
type Savepoint struct {
	tx     *txStatus
	serial uint64
	done   progress
}

// savepoints are the savepoints of a transaction.
type savepoints struct {
	last   uint64    // serial number of the last one
	undone []serials // ranges of invalid serial numbers, in increasing order
}

// serials is a range of serial numbers, without after and with last.
type serials struct{ after, last uint64 }

// take returns the serial number of a new savepoint.
func (p *savepoints) take() uint64 {
	p.last++
	return p.last
}

// progress is the amount of a transaction's work so far.
type progress struct {
	claims, keys, near, altered, writes int

	verdicts  int // number of observed verdicts
	effective verdictCounts
}

// valid reports whether no rollback went to an earlier point than the savepoint.
func (p *savepoints) valid(serial uint64) bool {
	i, _ := slices.BinarySearchFunc(p.undone, serial, func(u serials, serial uint64) int { return cmp.Compare(u.last, serial) })
	return i == len(p.undone) || serial <= p.undone[i].after
}

// invalidate invalidates all savepoints that were taken after the given one.
func (p *savepoints) invalidate(after uint64) {
	n := len(p.undone)
	for n > 0 && p.undone[n-1].after >= after {
		n--
	}
	if p.undone = p.undone[:n]; after < p.last {
		p.undone = append(p.undone, serials{after, p.last})
	}
}
