package engine

import "sync"

// A txStatus says whether a transaction may continue: it is live, and has no conflict. Its lock
// guards all of the transaction.
type txStatus struct {
	core  *core
	whole *txStatus // of a part: that of its transaction

	mu     sync.Mutex // guards all of the transaction; held during its own reads, never by the engine
	live   bool
	lost   error  // ErrConflict once a read saw that the transaction cannot commit
	lostTo uint64 // the batch with which it conflicts, or a later one, 0 if there is none
}

// lock begins a method that needs nothing of the engine: the transaction is live without a
// conflict, and mu is held. Unlocking mu ends it. A nil status is that of a nil Tx.
func (s *txStatus) lock() error {
	if s == nil {
		return ErrNoTransaction
	}
	s.mu.Lock()
	err := s.lost
	if !s.live {
		err = ErrNoTransaction
	}
	if err != nil {
		s.mu.Unlock()
	}
	return err
}

// lockWorking is lock for a method that does not use the store but needs a working engine.
func (s *txStatus) lockWorking() error {
	err := s.lock()
	if err != nil {
		return err
	}
	if err = s.core.works(); err != nil {
		s.mu.Unlock()
	}
	return err
}

// lockStore is lock for a method that uses the store; unlockStore ends it.
func (s *txStatus) lockStore() error {
	err := s.lock()
	if err != nil {
		return err
	}
	if err = s.core.enter(); err != nil {
		s.mu.Unlock()
	}
	return err
}

func (s *txStatus) unlockStore() {
	s.core.leave()
	s.mu.Unlock()
}

// lose records that the transaction conflicts with a batch; if it is that of a part, so does the
// whole. mu is held.
func (s *txStatus) lose(by uint64) error {
	s.lost, s.lostTo = ErrConflict, by
	if w := s.whole; w != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.live {
			w.lost, w.lostTo = ErrConflict, by
		}
	}
	return ErrConflict
}
