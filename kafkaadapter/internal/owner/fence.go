// Package owner makes an assignment the owner of its partition in the store, so that no batch of an
// earlier owner commits, and counts the attempts at the partition's next record.
package owner

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
)

// ErrLost means that the partition got another owner.
var ErrLost = errors.New("hapax: the partition has another owner by now")

// A Record is what the store keeps for a partition. Every batch reads it, and each change of the owner
// writes it, so that a batch of an earlier owner conflicts and is not applied. Only a Fence writes it.
type Record struct {
	Token [16]byte // of the owner; zero if there is none: an assignment that ends cleanly writes it
	Width uint32   // the maximum number of records of its batches, which may have been in progress when it died
	Tries Attempts
}

// Attempts counts the attempts at the next record of a partition.
type Attempts struct {
	Offset int64
	N      uint32
}

// A Tx is a transaction that reads and writes the record of the partition. The read is part of the
// transaction: a change of the record before the commit is a conflict.
type Tx interface {
	Get() (Record, error) // the zero Record if there is none
	Put(Record) error
}

// A Store has the record of the partition.
type Store interface {
	// Update runs fn in a transaction, and again after a conflict. It does nothing if there is no
	// store yet.
	Update(ctx context.Context, retries int, fn func(Tx) error) error
	// Engine returns a comparable value that is the store's as long as it is open.
	Engine() any
}

// A Fence is the ownership of one assignment. Release may be called from any goroutine; the other
// methods are for that of the assignment.
type Fence struct {
	store      Store
	token      [16]byte
	taken      bool
	state      State
	singleStep int
	undone     bool // the stored attempt is that of an earlier owner whose goroutine runs

	marked *atomic.Bool // of the state; a later owner reads it
}

// A State is what a batch may change of the record.
type State struct {
	Width  uint32   // the most records that a batch may hold
	Tries  Attempts // at the next record
	Marked bool     // the last of the attempts is stored, but its handler has not returned
}

// alive has a liveOwner for each token of an assignment that has become an owner and whose goroutine
// runs. The consumers of a process share it, because partitions move between them.
var alive sync.Map

type liveOwner struct {
	engine any
	marked *atomic.Bool
}

// New returns a fence that owns nothing yet.
func New(store Store) Fence {
	f := Fence{store: store, marked: &atomic.Bool{}}
	_, _ = rand.Read(f.token[:]) // it cannot fail
	return f
}

// Take makes the assignment the owner. If the earlier owner did not leave, the next records, as many
// as its batches could contain, are handled one by one. The stored attempts count unless reading does
// not continue at their record, but without one that was stored and did not begin, or that an
// earlier owner still makes. Call Taken once the transaction has committed.
func (f *Fence) Take(tx Tx, width int, continues bool) error {
	old, err := tx.Get()
	if err != nil {
		return err
	}
	f.undone = false
	switch old.Token {
	case f.token: // it is looked up again
	case [16]byte{}:
		f.singleStep = 0
	default:
		f.singleStep = int(old.Width)
		// by a consumer of this process, or from this assignment by one: no process died
		before, _ := alive.Load(old.Token)
		if before, ok := before.(liveOwner); ok && before.engine == f.store.Engine() {
			f.singleStep, f.undone = 0, before.marked.Load()
		} else if f.taken {
			f.singleStep = 0
		}
	}
	alive.Store(f.token, liveOwner{f.store.Engine(), f.marked})
	f.state = State{Width: uint32(width)}
	if continues {
		f.state.Tries = old.Tries
	}
	if f.state.Tries.N > 0 && (f.marked.Load() || f.undone) {
		f.state.Tries = f.state.Tries.less()
	}
	return tx.Put(f.record(f.state))
}

// Taken records that a transaction with Take has committed.
func (f *Fence) Taken() {
	f.taken = true
	f.marked.Store(false)
}

// IsTaken reports whether the assignment has become the owner.
func (f *Fence) IsTaken() bool { return f.taken }

// Check returns an error if the partition has another owner.
func (f *Fence) Check(tx Tx) error {
	r, err := tx.Get()
	if err == nil && !f.Owns(r) {
		err = ErrLost
	}
	return err
}

// Owns reports whether the owner in a record is this one.
func (f *Fence) Owns(r Record) bool { return r.Token == f.token }

// Release removes this owner, unless the partition has another one. It always writes, so that a
// transaction that has read the record either commits before it or conflicts with it.
func (f *Fence) Release() error {
	return f.store.Update(context.Background(), 1000, func(tx Tx) error {
		r, err := tx.Get()
		if err != nil {
			return err
		}
		if f.Owns(r) {
			r.Token = [16]byte{}
		}
		return tx.Put(r)
	})
}

// End records that the goroutine of the assignment has ended.
func (f *Fence) End() { alive.Delete(f.token) }

// State returns the state that the next batch begins with.
func (f *Fence) State() State { return State{f.state.Width, f.state.Tries, f.marked.Load()} }

// Write writes the state after a batch, if it has changed. The transaction must have called Check.
// Widths are stored before batches of that size are made, so that after a crash it is known how many
// records may have been in progress.
func (f *Fence) Write(tx Tx, s State) error {
	r := f.record(s)
	if r == f.record(f.state) {
		return nil
	}
	return tx.Put(r)
}

// Committed records that a batch of done records with the state has committed.
func (f *Fence) Committed(s State, done int) {
	f.set(s)
	f.singleStep = max(0, f.singleStep-done)
}

// SingleStep returns the number of records still to be handled one by one.
func (f *Fence) SingleStep() int { return f.singleStep }

// Tries returns the stored attempts at the next record.
func (f *Fence) Tries() Attempts { return f.state.Tries }

// Width returns the most records that a batch may hold, as stored.
func (f *Fence) Width() int { return int(f.state.Width) }

// Widen sets the width of batches without the store. It is stored anew by Take.
func (f *Fence) Widen(width int) { f.state.Width = uint32(width) }

// Marked reports whether an attempt at the next record is stored whose handler has not returned.
func (f *Fence) Marked() bool { return f.marked.Load() }

// Lose records that another owner may have changed the record: an attempt is not this one's any more.
func (f *Fence) Lose() { f.marked.Store(false) }

// Forget records that the store is another one, or was opened again, so that nothing is owned in it.
func (f *Fence) Forget() {
	f.taken = false
	f.marked.Store(false)
}

// Mark stores that an attempt at a record begins, so that it counts even if the process dies during
// it.
func (f *Fence) Mark(ctx context.Context, offset int64, limit uint64) error {
	if f.marked.Load() {
		return nil
	}
	s := f.state
	if s.Tries.Offset != offset {
		s.Tries = Attempts{Offset: offset}
	}
	if uint64(s.Tries.N) >= limit {
		return nil
	}
	s.Tries.N++
	s.Marked = true
	return f.update(ctx, s)
}

// Unmark removes the stored attempt at the next record, if there is one, because no handler runs: a
// failed attempt is counted anew with its batch. An attempt that was cut off remains, because its
// owner can no longer commit.
func (f *Fence) Unmark(ctx context.Context) error {
	if !f.marked.Load() {
		return nil
	}
	s := f.state
	s.Tries, s.Marked = s.Tries.less(), false
	return f.update(ctx, s)
}

// update writes a state in a transaction of its own.
func (f *Fence) update(ctx context.Context, s State) error {
	err := f.store.Update(ctx, 100, func(tx Tx) error {
		if err := f.Check(tx); err != nil {
			return err
		}
		return tx.Put(f.record(s))
	})
	if err == nil {
		f.set(s)
	}
	return err
}

func (f *Fence) record(s State) Record { return Record{f.token, s.Width, s.Tries} }

func (f *Fence) set(s State) {
	f.marked.Store(s.Marked)
	f.state = s
}

// less returns the attempts without the last one.
func (a Attempts) less() Attempts {
	if a.N <= 1 {
		return Attempts{}
	}
	return Attempts{a.Offset, a.N - 1}
}
