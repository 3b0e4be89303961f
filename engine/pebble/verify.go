package pebble

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// A verifier reads the whole store.
type verifier struct {
	core        *core
	identity    *identity
	reader      *reader
	claimReader *claimReader
	journal     *journal
}

func (v *verifier) Verify(ctx context.Context, report func(problem string)) error {
	c := verification{verifier: v, ctx: ctx, report: report}
	if err := c.files(); err != nil {
		return err
	}
	if err := c.contents(); err != nil {
		return err
	}
	if err := v.core.fault.takeDamage(); err != nil {
		report(fmt.Sprintf("met in the background: %v", err))
	}
	return v.core.fault.get()
}

// A verification is one call of Verify.
type verification struct {
	verifier *verifier
	ctx      context.Context
	report   func(string)
}

func (v *verification) files() error {
	d := v.verifier.core.disk
	names, err := d.names()
	if err != nil {
		return fmt.Errorf("hapax: reading the store's directory: %w", err)
	}
	tables, err := v.tables()
	if err != nil {
		return err
	}
	names = append(slices.DeleteFunc(names, isTable), tables...)
	slices.Sort(names)
	for _, name := range names {
		if err := v.ctx.Err(); err != nil {
			return err
		}
		err := v.file(name)
		// Pebble deletes and reuses files concurrently.
		if _, gone := d.Stat(d.path(name)); err != nil && !errors.Is(gone, fs.ErrNotExist) {
			v.report(fmt.Sprintf("%s: %v", name, err))
		}
	}
	return nil
}

// tables returns the file names of the store's tables, without files that are being written or
// waiting for deletion.
func (v *verification) tables() ([]string, error) {
	return readValue(v.verifier.core.fault, func() (names []string, err error) {
		levels, err := v.verifier.core.db.SSTables()
		for _, level := range levels {
			for _, table := range level {
				names = append(names, tableName(uint64(table.BackingSSTNum)))
			}
		}
		return slices.Compact(names), asRead(err)
	})
}

func (v *verification) file(name string) error {
	d := v.verifier.core.disk
	switch {
	case isTable(name):
		return v.table(name)
	case isLog(name):
		data, err := readFile(d, d.path(name))
		if scan := scanLog(data, uint32(fileNumber(name))); err == nil && scan.proof {
			err = fmt.Errorf("%w: unreadable at byte %d, which was durable", storage.ErrDamaged, scan.valid)
		}
		return err
	case name == sidecar.IdentityName:
		id, err := sidecar.ReadIdentity(sidecarFS{d}, d.dir, v.verifier.core.o.kind())
		if err == nil && id != v.verifier.identity.id {
			err = fmt.Errorf("%w: it has changed", storage.ErrDamaged)
		}
		return err
	case name == attestName:
		_, err := readAttestation(d)
		return err
	case name == d.manifests.durable().name:
		return checkManifest(d, d.manifests.durable())
	}
	return nil
}

// table reads a whole table without the cache.
func (v *verification) table(name string) error {
	d := v.verifier.core.disk
	return d.fault.read(func() (err error) {
		f, err := d.Open(d.path(name))
		if err != nil {
			return err
		}
		readable, err := sstable.NewSimpleReadable(f)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		o := v.verifier.core.o.pebbleOptions(d)
		o.EnsureDefaults()
		r, err := sstable.NewReader(v.ctx, readable, o.MakeReaderOptions())
		if err != nil {
			return errors.Join(err, readable.Close())
		}
		return errors.Join(r.ValidateBlockChecksums(), r.Close())
	})
}

// contents reads all data as the engine does.
func (v *verification) contents() error {
	parts := []struct {
		what string
		read func() error
	}{
		{"claims", func() error {
			return v.verifier.claimReader.Scan(v.ctx, storage.Span{}, nil, func(key, _ []byte) error {
				if _, _, err := storage.ParseKey(key); err != nil {
					v.report(err.Error())
				}
				return nil
			})
		}},
		{"state", func() error {
			return v.verifier.reader.ScanState(storage.Span{}, func(_, _ []byte) error { return v.ctx.Err() })
		}},
		{"journal", v.journal},
		{"packed batches", v.packed},
	}
	for _, part := range parts {
		if err := part.read(); err != nil {
			if v.ctx.Err() != nil {
				return v.ctx.Err()
			}
			v.report(fmt.Sprintf("%s: %v", part.what, err))
		}
	}
	return nil
}

// journal checks that no entry is missing between two that exist.
func (v *verification) journal() error {
	next := uint64(0)
	return v.verifier.journal.Journal(0, func(seq uint64, _ []byte) error {
		if next != 0 && seq != next {
			v.report(fmt.Sprintf("journal: entry %d is missing", next))
		}
		next = seq + 1
		return v.ctx.Err()
	})
}

// packed reads the claims that are not in tables yet, as the next Open would.
func (v *verification) packed() error {
	return v.verifier.reader.each(prefixSpan([]byte{packedSpace}), func(it *pebble.Iterator) error {
		if err := memtable.CheckPacked(it.Value()); err != nil {
			v.report(fmt.Sprintf("packed batch %x: %v", it.Key()[1:], err))
		}
		return v.ctx.Err()
	})
}
