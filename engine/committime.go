package engine

// PutCommitTime is driver.TxKeys.PutCommitTime.
func (k txSpaceKeys) PutCommitTime(key []byte) error {
	if err := k.checkWrite(key); err != nil {
		return err
	}
	return k.state.putCommitTime(k.prefix, key)
}
