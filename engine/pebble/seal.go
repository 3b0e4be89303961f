package pebble

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage"
)

// Sealing brings a frozen table to where its claims are kept for good. In this order:
//
//  1. wait until the newest batch in it is durable: a table of Pebble's survives a crash at once,
//     the log only up to its last sync, and what a crash leaves must be a prefix of the batches;
//  2. write its claims, sorted, removals as tombstones, to tables of their own (runs), and ingest
//     these in one step: they become newer than everything that is in Pebble;
//  3. attest the MANIFEST, which alone knows of them;
//  4. remove the packed batches from the journal, with the notes of the drops that went into the
//     run;
//  5. forget the frozen table.
//
// A crash before 4 is durable finds the journal whole: the claims are in memory again, where they
// win over the run that has the same ones, and are sealed once more. Since the journal goes from
// its beginning only, what it still has of a key is never older than what any run has.
//
// From 2 to 5 ingest is held, so that a Drop comes before all of it, and then the run does not have
// the dropped claims, or after it, and then its range delete is newer than the run.

const (
	// runBytes is the size at which the next table of a run is begun; a quarter where a bucket
	// ends.
	runBytes = 8 << 20

	// flushPart is which part of a memory table is flushed after a seal: the rest is for what comes
	// meanwhile.
	flushPart = 3

	runPrefix = "hapax-run-"
)

// runOptions are those of a table in L0, where runs that overlap others are put.
func runOptions(o *pebble.Options) sstable.WriterOptions {
	own := *o
	own.EnsureDefaults() // or MakeWriterOptions dereferences a nil
	return own.MakeWriterOptions(0, formatVersion.MaxTableFormat())
}

// seal seals frozen tables until seals is closed.
func (s *Store) seal() {
	defer close(s.sealed)
	for t := range s.seals {
		if err := s.sealTable(t); err != nil {
			s.fault.set(fmt.Errorf("sealing claims in a table: %w", err))
			return
		}
	}
}

func (s *Store) sealTable(t *table) error {
	if err := s.awaitDurable(t.last); err != nil {
		return err
	}
	paths, drops, err := s.writeRun(t)
	if err != nil {
		return err
	}
	s.ingest.Lock()
	defer s.ingest.Unlock()
	if s.dropsOf(t) != drops && !s.o.test.sealDropped {
		// A bucket was dropped meanwhile. Once more, while no other bucket can be dropped.
		if err := s.removeRun(paths); err != nil {
			return err
		}
		if paths, _, err = s.writeRun(t); err != nil {
			return err
		}
	}
	if s.o.test.forgetFirst {
		if err := s.forgetPacked(t.last); err != nil {
			return err
		}
	}
	if len(paths) > 0 {
		err := s.fault.write(func() error { return s.db.Ingest(context.Background(), paths) })
		if pebble.IsCorruptionError(err) {
			return asRead(err)
		}
		if err != nil {
			return err
		}
	}
	if err := s.attestNow(); err != nil {
		return err
	}
	if err := s.forgetPacked(t.last); err != nil {
		return err
	}
	s.unsealed.sealed()
	return s.flushSoon()
}

// flushSoon has Pebble's memory table flushed in the background, if it is worth it. Right after a
// seal most of what is in it is packed batches that were removed, which are not written. It also
// bounds the log that is read after a kill.
func (s *Store) flushSoon() error {
	if s.logged.Load() < s.o.MemTableBytes/flushPart {
		return nil
	}
	s.logged.Store(0)
	return s.fault.write(func() error {
		_, err := s.db.AsyncFlush()
		return err
	})
}

// awaitDurable waits until a batch would survive a power cut.
func (s *Store) awaitDurable(seq uint64) error {
	for s.durable.Load() < seq && !s.o.test.sealUnsynced {
		select {
		case <-s.synced:
		case <-s.fault.failed:
			return s.fault.get()
		}
	}
	return nil
}

func (s *Store) dropsOf(t *table) int {
	s.unsealed.mu.RLock()
	defer s.unsealed.mu.RUnlock()
	return t.drops
}

// writeRun writes the claims of a frozen table to files. drops says which drops it has seen.
func (s *Store) writeRun(t *table) (paths []string, drops int, err error) {
	s.unsealed.mu.RLock()
	f := t.frame()
	s.unsealed.mu.RUnlock()
	claims := moment{f}.sorted(storage.Span{})
	w := &runWriter{s: s}
	err = s.fault.write(func() error {
		for i, r := range claims.refs {
			if i > 0 && r.place != claims.refs[i-1].place {
				w.boundary()
			}
			if err := w.add(claims, r); err != nil {
				return err
			}
		}
		return w.cut()
	})
	if err != nil {
		return nil, 0, err // who writes may still be at it
	}
	return w.paths, f.drops, nil
}

// A runWriter writes claims in key order to one file after the other.
type runWriter struct {
	s     *Store
	paths []string
	w     *sstable.Writer // nil between two files
	size  int             // of the keys and records in the file
	key   []byte
}

func (w *runWriter) add(claims *sorted, r ref) error {
	if w.size >= w.s.o.runBytes {
		if err := w.cut(); err != nil {
			return err
		}
	}
	if w.w == nil {
		if err := w.begin(); err != nil {
			return err
		}
	}
	key, record := claims.at(w.key[:0], r)
	w.key = key
	w.size += len(w.key) + len(record)
	if record == nil {
		return w.w.Delete(w.key)
	}
	return w.w.Set(w.key, record)
}

func (w *runWriter) begin() error {
	d := w.s.disk
	path := d.path(fmt.Sprintf("%s%d%s", runPrefix, len(w.paths), tmpSuffix))
	f, err := d.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	w.paths = append(w.paths, path)
	w.w = sstable.NewWriter(objstorageprovider.NewFileWritable(f), w.s.runOptions)
	return nil
}

// boundary is called where a bucket ends: a table that has one bucket alone can be dropped unread.
func (w *runWriter) boundary() {
	if w.size >= w.s.o.runBytes/4 {
		w.size = w.s.o.runBytes
	}
}

// cut ends the file, durably.
func (w *runWriter) cut() error {
	if w.w == nil {
		return nil
	}
	err := w.w.Close()
	w.w, w.size = nil, 0
	return err
}

func (s *Store) removeRun(paths []string) error {
	for _, path := range paths {
		if err := s.disk.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// removeLeftovers removes what an interrupted sealing or backup left.
func (s *Store) removeLeftovers() error {
	names, err := s.disk.List(s.disk.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, runPrefix) || name == stageName {
			if err := s.disk.RemoveAll(s.disk.path(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// forgetPacked removes the packed batches up to seq. It need not be durable on return. The caller
// holds ingest.
func (s *Store) forgetPacked(seq uint64) error {
	if seq < s.packedFrom {
		return nil
	}
	b := s.db.NewBatch()
	must(b.DeleteRange(packedKey(s.packedFrom), packedKey(seq+1), nil))
	must(b.Set([]byte{packedFromKey}, binary.BigEndian.AppendUint64(nil, seq+1), nil))
	for prefix, at := range s.dropNotes {
		if at <= seq {
			must(b.Delete(spaced(dropSpace, []byte(prefix)), nil))
			delete(s.dropNotes, prefix)
		}
	}
	if err := s.fault.write(func() error { return s.db.Apply(b, pebble.NoSync) }); err != nil {
		return err
	}
	s.packedFrom = seq + 1
	return nil
}

// makeRoom freezes the active table, once the one before is sealed. It runs in Apply, or instead of
// it.
func (s *Store) makeRoom() error {
	if t := s.unsealed.sealing(); t != nil {
		select {
		case <-t.done:
		case <-s.fault.failed:
			return s.fault.get()
		}
	}
	s.freeze()
	return nil
}

// freeze freezes the active table unless one is being sealed.
func (s *Store) freeze() {
	if t := s.unsealed.freeze(); t != nil {
		s.seals <- t // has room for the one that there is
	}
}

// sealAll brings all that was applied into tables. No Apply is under way.
func (s *Store) sealAll() error {
	for range 2 { // the active table, after the one that may be frozen
		if err := s.makeRoom(); err != nil {
			return err
		}
	}
	return s.fault.write(s.db.Flush)
}

// loadPacked fills memory from the journal of packed batches.
func (s *Store) loadPacked() error {
	s.dropNotes = make(map[string]uint64)
	err := s.each(prefixSpan([]byte{dropSpace}), func(it *pebble.Iterator) error {
		seq, err := parseSeq(it.Value())
		s.dropNotes[string(it.Key()[1:])] = seq
		return err
	})
	if err != nil {
		return err
	}
	if err := s.fault.read(func() (err error) {
		s.packedFrom, err = readSeq(s.db, packedFromKey)
		return err
	}); err != nil {
		return err
	}
	span := pebble.KeyRange{Start: packedKey(s.packedFrom), End: []byte{packedSpace + 1}}
	return s.each(span, func(it *pebble.Iterator) error {
		seq, err := parseSeq(it.Key()[1:])
		if err != nil {
			return err
		}
		dropped := func(prefix []byte) bool {
			at, noted := s.dropNotes[string(prefix)]
			return noted && seq <= at && !s.o.test.forgetDrops
		}
		if err := s.unsealed.replay(seq, it.Value(), dropped); err != nil {
			return err
		}
		if s.unsealed.full() {
			s.freeze()
		}
		return nil
	})
}
