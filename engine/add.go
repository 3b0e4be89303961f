package engine

// Add adds delta to an application key. An absent key counts as 0, and exists afterwards, even if
// delta is 0. The value is an int64 in the form of EncodeInt64.
//
// Add does not read the key: the sum is computed at commit, so Adds to the same key never conflict
// with each other. A transaction that reads the key (Get, Scan) conflicts with every Add to it, as
// with any other write, so do not read a key that many transactions add to. A Get after an Add
// counts as such a read; it returns the stored value plus what the transaction has added.
//
// If the sum overflows, or the stored value has another length, the whole transaction fails with an
// AddError that names the key, and nothing is applied. Add itself returns that error if the
// transaction's own writes suffice to detect it: a sum of its deltas, or a delta after a Put. After
// a Delete in the same transaction, Add counts from 0.
func (tx *Tx) Add(key []byte, delta int64) error { return applicationKeys(tx).Add(key, delta) }

// Add is Tx.Add in the space.
func (k txSpaceKeys) Add(key []byte, delta int64) error {
	if err := k.checkWrite(key); err != nil {
		return err
	}
	return k.state.add(k.prefix, key, delta)
}
