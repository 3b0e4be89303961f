package pebble

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// A journal is the batches' journal entries.
type journal struct {
	*core
	*reader
	trimmed atomic.Uint64 // the journal begins here
}

// TrimJournal implements storage.Store. It is one range delete, which the next sync of a batch makes
// durable.
func (j *journal) TrimJournal(below uint64) error {
	j.maintenance.Lock()
	defer j.maintenance.Unlock()
	from := j.trimmed.Load()
	if below <= max(from, 1) {
		return j.fault.get()
	}
	p := j.db.NewBatch()
	// It never begins at the first entry: every read would have to skip a tombstone that covers the
	// range of earlier ones.
	must(p.DeleteRange(journalKey(from), journalKey(below), nil))
	must(p.Set([]byte{trimKey}, binary.BigEndian.AppendUint64(nil, below), nil))
	if err := j.fault.write(func() error { return j.db.Apply(p, pebble.NoSync) }); err != nil {
		return err
	}
	j.trimmed.Store(below)
	return nil
}

// Journal implements storage.Store.
func (j *journal) Journal(from uint64, fn func(seq uint64, entry []byte) error) error {
	span := pebble.KeyRange{Start: journalKey(max(from, j.trimmed.Load())), End: []byte{journalSpace + 1}}
	return j.each(span, func(it *pebble.Iterator) error {
		seq, err := parseSeq(it.Key()[1:])
		if err != nil {
			return err
		}
		return fn(seq, it.Value())
	})
}
