package engine

func (k txSpaceKeys) PutCommitTime(key []byte) error {
	if err := checkHostKey(key); err != nil {
		return err
	}
	return k.state.putCommitTime(k.prefix, key)
}
