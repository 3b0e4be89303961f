package storage

import "sync/atomic"

// OneEngine ensures that only one engine uses a store. A store has a OneEngine: the store's Acquire
// and Release call those of the OneEngine, and its Close calls Retire.
type OneEngine struct{ taken atomic.Bool }

// Acquire implements Store.
func (o *OneEngine) Acquire() error {
	if !o.taken.CompareAndSwap(false, true) {
		return ErrInUse
	}
	return nil
}

// Release implements Store.
func (o *OneEngine) Release() { o.taken.Store(false) }

// Retire makes every later Acquire fail.
func (o *OneEngine) Retire() { o.taken.Store(true) }
