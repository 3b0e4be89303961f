package engine

// Add adds delta to an application key. An absent key counts as 0, and exists afterwards, even if
// delta is 0. The value is an int64 in the form of EncodeInt64.
//
// Add does not read the key: the sum is computed where the transaction commits, so that
// transactions that add to one key never conflict because of that, whatever their order. A
// transaction that reads the key (Get, Scan) conflicts with every Add to it, as with any other
// write; so do not read a key that many transactions add to. Get after an Add returns the value of
// the store plus what the transaction has added, and is such a read.
//
// If the sum overflows, or the store has a value of another length, the whole transaction fails
// with an AddError, which names the key, and nothing of it is applied. Add itself returns that
// error where the transaction's own writes show it: the sum of its own deltas, or a delta after a
// Put. After a Delete of its own, Add counts from 0.
func (tx *Tx) Add(key []byte, delta int64) error { return applicationKeys(tx).Add(key, delta) }

// Add is Tx.Add in the space.
func (k txSpaceKeys) Add(key []byte, delta int64) error {
	if err := k.checkWrite(key); err != nil {
		return err
	}
	return k.state.add(k.prefix, key, delta)
}
