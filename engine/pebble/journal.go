package pebble

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// A journal reads and trims the journal entries of batches.
type journal struct {
	core    *core
	reader  *reader
	trimmed atomic.Uint64 // the journal begins here
}

func (j *journal) TrimJournal(below uint64) error {
	j.core.maintenance.Lock()
	defer j.core.maintenance.Unlock()
	from := j.trimmed.Load()
	if below <= max(from, 1) {
		return j.core.fault.get()
	}
	p := j.core.db.NewBatch()
	// The range never starts at the first entry: otherwise every read would have to skip a
	// tombstone that covers earlier ranges.
	must(p.DeleteRange(journalKey(from), journalKey(below), nil))
	must(p.Set([]byte{trimKey}, binary.BigEndian.AppendUint64(nil, below), nil))
	if err := j.core.fault.write(func() error { return j.core.db.Apply(p, pebble.NoSync) }); err != nil {
		return err
	}
	j.trimmed.Store(below)
	return nil
}

func (j *journal) Journal(from uint64, fn func(seq uint64, entry []byte) error) error {
	span := pebble.KeyRange{Start: journalKey(max(from, j.trimmed.Load())), End: []byte{journalSpace + 1}}
	return j.reader.each(span, func(it *pebble.Iterator) error {
		seq, err := parseSeq(it.Key()[1:])
		if err != nil {
			return err
		}
		return fn(seq, it.Value())
	})
}
