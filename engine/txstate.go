package engine

import (
	"bytes"

	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A txState is a transaction's view of the state keys: the store as of its start, and its own
// writes.
type txState struct {
	core    *core
	status  *txStatus
	history *occ.History
	req     *txRequest
	base    *base // of a part; nil if there is no part

	key []byte // key of the current call
}

// lock must be called at the start of a method, and unlock at its end. A nil Tx has a nil state.
func (s *txState) lock() error {
	if s == nil {
		return ErrNoTransaction
	}
	return s.status.lockWorking()
}

func (s *txState) unlock() { s.status.mu.Unlock() }

// get returns the value of the key that consists of prefix and key.
func (s *txState) get(prefix, key []byte) ([]byte, bool, error) {
	if err := s.lock(); err != nil {
		return nil, false, err
	}
	defer s.unlock()
	s.key = append(append(s.key[:0], prefix...), key...)
	w, written, err := s.written(s.key)
	if err != nil {
		return nil, false, err
	}
	if written && !w.isSum {
		return append([]byte{}, w.StateWrite.Value...), w.StateWrite.Value != nil, nil
	}
	return s.read(s.key, &w, written)
}

// read reads a key of the store and adds the transaction's sum to it, if any. The caller holds the
// lock.
func (s *txState) read(key []byte, w *txWrite, written bool) ([]byte, bool, error) {
	value, found, err := s.stored(key)
	if err != nil {
		return nil, false, err
	}
	if err := s.req.reads.Note(string(key)); err != nil {
		return nil, false, asLimit(err)
	}
	if written {
		value, err = w.resolve(value, found)
		return value, err == nil, err
	}
	return value, found, nil
}

// stored returns a copy of a key's value as of the start of the transaction. It does not read the
// store if the history has the last write of the key.
func (s *txState) stored(key []byte) (value []byte, found bool, err error) {
	reads := &s.req.reads
	if last, ok := s.history.Latest(reads, key); ok {
		if last == nil {
			return nil, false, nil
		}
		return append([]byte{}, last...), true, nil
	}
	if err := s.core.enter(); err != nil {
		return nil, false, err
	}
	defer s.core.leave()
	if value, found, err = s.core.store.State(key); err != nil {
		return nil, false, s.core.stop(err)
	}
	if by := s.history.ChangedSince(reads, key); by > 0 {
		return nil, false, s.status.lose(by, string(key))
	}
	return value, found, nil
}

// written returns the transaction's latest write to a key. For a part, this includes the writes of
// its transaction.
func (s *txState) written(key []byte) (w txWrite, ok bool, err error) {
	i := s.req.writes.find(key)
	if ok = i >= 0; ok {
		w = s.req.writes.list[i]
	}
	if s.base == nil || ok && !w.isSum {
		return w, ok, nil
	}
	under, inherited, err := s.base.written(key)
	switch {
	case err != nil:
		return w, false, err
	case !inherited:
		return w, ok, nil
	case !ok:
		return under, true, nil
	}
	w, err = under.plus(w.delta)
	return w, true, err
}

// write sets a key, or removes it if value is nil.
func (s *txState) write(key, value []byte) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.unlock()
	return s.req.write(txWrite{StateWrite: storage.StateWrite{Key: key, Value: value}}, s.req.writes.find(key))
}

// put is write for the key that consists of prefix and key. It keeps no reference to key.
func (s *txState) put(prefix, key, value []byte) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.unlock()
	before := s.findWrite(prefix, key)
	return s.req.write(txWrite{StateWrite: storage.StateWrite{Key: s.writtenKey(before), Value: value}}, before)
}

// add adds to the key that consists of prefix and key.
func (s *txState) add(prefix, key []byte, delta int64) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.unlock()
	before := s.findWrite(prefix, key)
	if before < 0 {
		return s.req.write(txWrite{StateWrite: storage.StateWrite{Key: bytes.Clone(s.key)}, isSum: true, delta: delta}, before)
	}
	w, err := s.req.writes.list[before].plus(delta)
	if err != nil {
		return err
	}
	return s.req.write(w, before)
}

// putCommitTime sets the key that consists of prefix and key to the time of the commit.
func (s *txState) putCommitTime(prefix, key []byte) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.unlock()
	before := s.findWrite(prefix, key)
	if before >= 0 && s.req.writes.list[before].atCommit {
		return nil
	}
	now := EncodeInt64(s.core.now().UnixMicro())
	return s.req.write(txWrite{StateWrite: storage.StateWrite{Key: s.writtenKey(before), Value: now}, atCommit: true}, before)
}

// findWrite returns the index of the latest write to the key that consists of prefix and key, -1 if
// there is none. It sets s.key to that key. The caller holds the lock.
func (s *txState) findWrite(prefix, key []byte) int {
	s.key = append(append(s.key[:0], prefix...), key...)
	return s.req.writes.find(s.key)
}

// writtenKey returns a copy of s.key that a write may keep: that of the latest write, or a new one.
func (s *txState) writtenKey(before int) []byte {
	if before >= 0 {
		return s.req.writes.list[before].StateWrite.Key
	}
	return bytes.Clone(s.key)
}
