package pebble

import (
	"encoding/binary"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
)

// A packedLog has the packed batches in Pebble, and the notes of the drops that concern them.
type packedLog struct {
	core     *core
	memtable *memtable.Memtable

	// ingest is held while claims are moved from packed batches into tables, and by operations that
	// must not intervene: a drop, a backup. It guards the fields below.
	ingest     sync.Mutex
	packedFrom uint64            // first packed batch that exists
	dropNotes  map[string]uint64 // contents of dropSpace
}

// forgetPacked removes the packed batches up to seq. It need not be durable on return. The caller
// holds ingest.
func (l *packedLog) forgetPacked(seq uint64) error {
	if seq < l.packedFrom {
		return nil
	}
	b := l.core.db.NewBatch()
	must(b.DeleteRange(packedKey(l.packedFrom), packedKey(seq+1), nil))
	must(b.Set([]byte{packedFromKey}, binary.BigEndian.AppendUint64(nil, seq+1), nil))
	for prefix, at := range l.dropNotes {
		if at <= seq {
			must(b.Delete(spaced(dropSpace, []byte(prefix)), nil))
			delete(l.dropNotes, prefix)
		}
	}
	if err := l.core.fault.write(func() error { return l.core.db.Apply(b, pebble.NoSync) }); err != nil {
		return err
	}
	l.packedFrom = seq + 1
	return nil
}

// noteDrops adds notes to the batch that drops the spans, which tell the next Open that all current
// packed batches have dropped claims of these buckets. It returns the prefixes of the buckets. The
// caller holds ingest.
func (l *packedLog) noteDrops(p *pebble.Batch, spans []pebble.KeyRange) (prefixes []string) {
	seq := l.memtable.Newest()
	for _, span := range spans {
		prefix := string(span.Start[1:])
		prefixes = append(prefixes, prefix)
		if !l.memtable.Knows(prefix) {
			continue
		}
		must(p.Set(spaced(dropSpace, span.Start[1:]), binary.BigEndian.AppendUint64(nil, seq), nil))
		l.dropNotes[prefix] = seq
	}
	return prefixes
}
