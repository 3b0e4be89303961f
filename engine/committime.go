package engine

// PutCommitTime sets a key to the time at which the transaction commits, by the clock of the
// engine, in microseconds since 1970 and in the form of engine.EncodeInt64. It reads nothing.
// While the engine is open, a batch never has an earlier time than the batches before it,
// whatever the clock does. Until the commit the transaction itself reads the time of the call.
func (k TxSpaceKeys) PutCommitTime(key []byte) error {
	if err := k.checkWrite(key); err != nil {
		return err
	}
	return k.state.putCommitTime(k.prefix, key)
}
