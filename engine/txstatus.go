package engine

import "sync"

// A txStatus says whether a transaction may go on: it is live, and has not lost to another one. Its
// lock guards all of the transaction.
type txStatus struct {
	core  *core
	whole *txStatus // of a part: that of the transaction that it belongs to

	mu     sync.Mutex // guards all of the transaction; held during its own reads, never by the engine
	live   bool
	lost   error  // ErrConflict once a read saw that the transaction cannot commit
	lostTo uint64 // the batch that it lost to, or a later one, 0 if it has not lost
}

// lock begins a method that needs nothing of the engine: the transaction is live and has not lost,
// and mu is held. Unlocking mu ends it. A nil status is that of a nil Tx.
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

// lockWorking is lock for a method that needs nothing of the store, but that the engine works.
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

// lose notes that the transaction has lost to a batch; if it is that of a part, so has the whole.
// mu is held.
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
