package engine

import "sync"

// A txStatus says whether a transaction can continue: it is live and has no conflict. Its lock
// guards the whole transaction.
type txStatus struct {
	core  *core
	whole *txStatus // of a part: the status of its transaction

	mu     sync.Mutex // guards the whole transaction; held during its own reads, never by the engine
	live   bool
	lost   error  // wraps ErrConflict once a read saw that the transaction cannot commit
	lostTo uint64 // the batch with which it conflicts, or a later one, 0 if there is none
	lostBy uint64 // the batch with which it conflicts, as far as it is known
}

// lock locks mu for a method that does not need the engine. It returns an error, without the lock,
// if the transaction is not live or has a conflict. A nil Tx has a nil status.
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

// lose records that the transaction conflicts with a batch because of a state key; if it is that of a part,
// so does the whole. mu is held.
func (s *txStatus) lose(by uint64, key string) error {
	s.lost, s.lostTo, s.lostBy = conflictOver(key), by, by
	if w := s.whole; w != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.live {
			w.lost, w.lostTo, w.lostBy = s.lost, by, by
		}
	}
	return s.lost
}
