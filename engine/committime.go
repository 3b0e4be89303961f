package engine

import (
	"github.com/hapax-dev/hapax/engine/storage"
)

// PutCommitTime sets a key to the time at which the transaction commits, by the clock of the
// engine, in microseconds since 1970 and in the form of EncodeInt64. It reads nothing. While the
// engine is open, a batch never has an earlier time than the batches before it, whatever the clock
// does. Until the commit the transaction itself reads the time of the call.
func (k TxKeySpace) PutCommitTime(key []byte) error {
	if err := checkHostKey(key); err != nil {
		return err
	}
	return k.tx.putCommitTime(k.prefix, key)
}

func (tx *Tx) putCommitTime(prefix, key []byte) error {
	if err := tx.lockWorking(); err != nil {
		return err
	}
	defer tx.mu.Unlock()
	before := tx.findWrite(prefix, key)
	if before >= 0 && tx.writes.list[before].atCommit {
		return nil
	}
	now := EncodeInt64(tx.e.now().UnixMicro())
	return tx.keepWrite(txWrite{StateWrite: storage.StateWrite{Key: tx.writtenKey(before), Value: now}, atCommit: true}, before)
}
