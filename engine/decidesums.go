package engine

// resolveSums computes the results of a transaction's Adds. It changes nothing outside the
// transaction.
func (d *decider) resolveSums(g *group, writes *txWrites) error {
	if !writes.adds {
		return nil
	}
	for _, i := range writes.latest {
		w := &writes.list[i]
		if !w.isSum {
			continue
		}
		base, err := d.sumBefore(g, w.name, w)
		if err != nil {
			return err
		}
		if w.sum.total, err = addTo(w.StateWrite.Key, base, w.delta); err != nil {
			return err
		}
	}
	return nil
}

// sumBefore returns the value of a key after all decisions so far. It takes the value from the
// cache; from the transaction's read of the store, if the key was not written since; from this
// batch; or from the store, once the batch of the last write is applied.
func (d *decider) sumBefore(g *group, key string, w *txWrite) (sumBefore, error) {
	if base, ok := d.sums.get(key); ok {
		return base, nil
	}
	last, floor := d.history.LastWrite(key)
	if w.sum.looked && last <= w.sum.asOf && floor <= w.sum.asOf {
		return w.sum.base, nil
	}
	if last > d.seq {
		for i := len(g.batch.State) - 1; i >= 0; i-- {
			if s := &g.batch.State[i]; string(s.Key) == key {
				return sumOf(s.Value, s.Value != nil), nil
			}
		}
	}
	if !d.core.applied.wait(last) {
		return sumBefore{}, d.core.Err()
	}
	value, found, err := d.core.store.State(w.StateWrite.Key)
	if err != nil {
		return sumBefore{}, d.core.stop(err)
	}
	return sumOf(value, found), nil
}

// writeSums adds the sums of a transaction to the group, and updates the cache with its other
// writes.
func (d *decider) writeSums(g *group, writes *txWrites) {
	if !writes.adds && d.sums.empty() {
		return
	}
	for _, i := range writes.latest {
		if w := &writes.list[i]; w.isSum {
			d.sums.added(&g.batch, d.seq+1, w.name, w.sum.total)
			g.bytes += len(w.name) + int64Size
		} else {
			d.sums.written(w.name, w.StateWrite.Value)
		}
	}
}
