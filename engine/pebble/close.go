package pebble

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Close implements storage.Store. Close also releases the directory of a store that has failed. A
// second Close returns the result of the first.
func (s *Store) Close() error {
	s.oneEngine.Retire()
	s.closing.Do(func() { s.closed = s.close() })
	return s.closed
}

func (s *Store) close() error {
	if s.core.disk.held != nil {
		if err := s.core.disk.held.Check(); err != nil {
			s.core.fault.set(err)
		}
	}
	close(s.writer.unsynced)
	close(s.attester.stop)
	var err error
	if s.core.fault.get() == nil {
		s.background.Wait()
		err = errors.Join(s.attester.syncCopy(s.attester.unsynced.Load()), s.sealer.sealAll())
	}
	close(s.sealer.seals)
	if s.core.fault.get() == nil {
		<-s.sealer.sealed
	}
	if err == nil {
		err = s.closeClean()
	}
	s.core.recentRuns.Close()
	if err != nil && s.core.fault.get() != nil {
		s.core.closePoisoned()
	}
	return errors.Join(err, s.core.disk.release())
}

// closeClean closes a store whose claims are all in tables, and leaves no file that nothing needs. A
// crash after any step leaves a store that contains every batch:
//
//  1. flush: no log is needed any more, and what was removed from the journal stays removed;
//  2. remove the tables that contained it;
//  3. close Pebble;
//  4. attest the MANIFEST, which alone refers to the tables now;
//  5. remove what is in the logs, durably, so that the directory is as step 6 records it;
//  6. record the files.
func (s *Store) closeClean() error {
	err := errors.Join(s.settle(), s.core.fault.write(s.core.db.Close))
	if err != nil {
		return fmt.Errorf("hapax: closing the store: %w", err)
	}
	if err := writeAttestation(s.core.disk, attestation{s.attester.durable.Load(), currentManifest(s.core.disk)}); err != nil {
		return err
	}
	if err := removeLogs(s.core.disk); err != nil {
		return err
	}
	err = writeClean(s.core.disk, s.attester.durable.Load())
	s.core.disk.reserve.shrink()
	return err
}

// settle moves all data to tables and removes those with removed journal entries and packed batches
// only. Their removal is flushed before: a crash must not leave a journal that lacks entries.
func (s *Store) settle() error {
	if err := s.core.fault.write(s.core.db.Flush); err != nil {
		return err
	}
	for _, removed := range []pebble.KeyRange{
		{Start: journalKey(0), End: journalKey(s.journal.trimmed.Load())},
		{Start: packedKey(0), End: packedKey(s.packedLog.packedFrom)},
	} {
		if bytes.Equal(removed.Start, removed.End) {
			continue
		}
		if err := s.core.fault.write(func() error { return s.core.db.Excise(context.Background(), removed) }); err != nil {
			return asRead(err)
		}
	}
	return nil
}

// removeLogs removes the logs of a store that was flushed and closed, durably: Pebble keeps some for
// reuse. The newest is replaced by an empty one instead: where Pebble finds no log at all, it writes no
// MANIFEST when it opens, and a checkpoint before the first flush is then incomplete.
func removeLogs(d *failStopFS) error {
	names, err := d.List(d.dir)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !d.ownLogs.has(name) })
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(fileNumber(a), fileNumber(b)) })
	for i, name := range names {
		if i == len(names)-1 {
			err = emptyLog(d, name)
		} else {
			err = d.Remove(d.path(name))
		}
		if err != nil {
			return err
		}
	}
	if err := syncDir(d, d.dir); err != nil {
		return err
	}
	return d.fault.get()
}

// emptyLog replaces a log by an empty one. To create it under its name would remove it for a moment: a
// kill in between would leave no log.
func emptyLog(d *failStopFS, name string) error {
	empty := d.path(name + tmpSuffix)
	f, err := d.Create(empty, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return d.Rename(empty, d.path(name))
}

// closePoisoned frees Pebble's memory, if Pebble can still be closed. Nothing of that reaches the
// disk. Calls that were in progress when the store failed have a second to return: Pebble's Close
// may not run concurrently with them.
func (c *core) closePoisoned() {
	for waited := time.Duration(0); c.fault.running.Load() > 0 && waited < time.Second; waited += time.Millisecond {
		time.Sleep(time.Millisecond)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		defer func() { _ = recover() }()
		_ = c.db.Close()
	}()
	select {
	case <-closed:
	case <-time.After(patience):
	}
}
