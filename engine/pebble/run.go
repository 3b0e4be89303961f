package pebble

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/engine/storage"
)

// runFiles writes frozen tables to files that Pebble can ingest.
type runFiles struct {
	core    *core
	options sstable.WriterOptions
	borders [][]byte // at which the last large run was divided, nil if there was none (cuts.go)
}

// write writes the claims of a frozen table.
func (f *runFiles) write(table memtable.Moment) (paths []string, err error) {
	claims := table.Sorted(storage.Span{})
	borders := f.borders
	if borders == nil {
		if borders, err = f.core.groups(); err != nil {
			return nil, err
		}
	}
	cuts := f.cuts(claims, borders)
	w := &runWriter{runFiles: f}
	err = f.core.fault.write(func() error {
		defer claims.Free()
		i := 0
		for key, record := range claims.All(claimSpace) {
			if len(cuts) > 0 && i == cuts[0].at {
				cuts = cuts[1:]
				if err := w.cut(); err != nil {
					return err
				}
			}
			if err := w.add(key, record); err != nil {
				return err
			}
			i++
		}
		return w.cut()
	})
	if err != nil {
		return nil, err // the writing goroutine may still be running
	}
	return w.paths, nil
}

// putBytes is about the size of a batch of put.
const putBytes = 1 << 20

// put writes the claims of a frozen table to tables through Pebble's log. Pebble reads tables to find the
// level for a run that it ingests, but none for a flush: so this succeeds where a table is damaged. All
// batches of the table are durable.
func (f *runFiles) put(table memtable.Moment) error {
	claims := table.Sorted(storage.Span{})
	return f.core.fault.write(func() error {
		defer claims.Free()
		b := f.core.db.NewBatch()
		for key, record := range claims.All(claimSpace) {
			if record == nil {
				must(b.Delete(key, nil))
			} else {
				must(b.Set(key, record, nil))
			}
			if b.Len() < putBytes {
				continue
			}
			if err := f.core.db.Apply(b, pebble.NoSync); err != nil {
				return err
			}
			b = f.core.db.NewBatch()
		}
		if err := f.core.db.Apply(b, pebble.NoSync); err != nil {
			return err
		}
		return f.core.db.Flush()
	})
}

func (f *runFiles) remove(paths []string) error {
	for _, path := range paths {
		if err := f.core.disk.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// A runWriter writes claims in key order to one file after the other.
type runWriter struct {
	runFiles *runFiles
	paths    []string
	w        *sstable.Writer // nil between two files
}

func (w *runWriter) add(key, record []byte) error {
	if w.w == nil {
		if err := w.begin(); err != nil {
			return err
		}
	}
	if record == nil {
		return w.w.Delete(key)
	}
	return w.w.Set(key, record)
}

func (w *runWriter) begin() error {
	d := w.runFiles.core.disk
	path := d.path(fmt.Sprintf("%s%d%s", runPrefix, len(w.paths), tmpSuffix))
	f, err := d.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	w.paths = append(w.paths, path)
	w.w = sstable.NewWriter(newRunFile(f), w.runFiles.options)
	return nil
}

// cut ends the file, durably.
func (w *runWriter) cut() error {
	if w.w == nil {
		return nil
	}
	err := w.w.Close()
	w.w = nil
	return err
}
