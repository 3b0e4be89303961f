package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// check decides whether the directory holds what it should, without changing a byte, and before
// Pebble, which deletes what it believes to be garbage, may write. clean says that there is a
// record of a clean close, and that it agrees.
func (s *Store) check() (clean bool, err error) {
	if s.o.test.ignoreChecks {
		return false, nil
	}
	if !s.o.test.ignoreCleanRecord {
		clean, err := s.disk.checkClean()
		if clean || err != nil {
			return clean, err
		}
	}
	attested, err := s.disk.readAttestation()
	if err != nil {
		return false, err
	}
	if err := s.disk.checkManifest(attested.manifest); err != nil {
		return false, err
	}
	promised, err := s.disk.checkLogs()
	if err != nil {
		return false, err
	}
	return false, s.checkContent(max(attested.seq, promised))
}

// checkManifest reads the current MANIFEST to its end, which Pebble takes to be where it cannot
// read on.
func (d *disk) checkManifest(attested position) error {
	desc, err := pebble.Peek(d.dir, d)
	if err != nil {
		return d.asDamage("looking for the MANIFEST", err)
	}
	if !desc.Exists {
		return fmt.Errorf("%w: no MANIFEST", storage.ErrDamaged)
	}
	name := d.PathBase(desc.ManifestFilename)
	data, err := readFile(d, desc.ManifestFilename)
	if err != nil {
		return d.asDamage("reading "+name, err)
	}
	scan := scanManifest(data)
	switch number, old := fileNumber(name), fileNumber(attested.name); {
	case scan.proof:
		return fmt.Errorf("%w: %s is unreadable at byte %d and continues after it", storage.ErrDamaged, name, scan.valid)
	case number < old:
		return fmt.Errorf("%w: the current MANIFEST is %s and was %s", storage.ErrDamaged, name, attested.name)
	case number == old && uint64(scan.valid) < attested.size:
		return fmt.Errorf("%w: %s is readable up to byte %d, %d were durable", storage.ErrDamaged, name, scan.valid, attested.size)
	}
	return nil
}

// checkLogs reads all logs to their ends and returns the newest batch that they promise to be
// durable.
func (d *disk) checkLogs() (promised uint64, err error) {
	names, err := d.List(d.dir)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".log") {
			continue
		}
		data, err := readFile(d, d.path(name))
		if err != nil {
			return 0, d.asDamage("reading "+name, err)
		}
		scan := scanLog(data, uint32(fileNumber(name)))
		if scan.proof {
			return 0, fmt.Errorf("%w: %s is unreadable at byte %d, which was durable", storage.ErrDamaged, name, scan.valid)
		}
		promised = max(promised, scan.newest)
	}
	return promised, nil
}

// fileNumber returns the number in a name such as MANIFEST-000012 or 000012.log, 0 if there is
// none.
func fileNumber(name string) uint64 {
	name = strings.TrimPrefix(strings.TrimSuffix(name, ".log"), manifestPrefix)
	n, err := strconv.ParseUint(name, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// checkContent opens the store for reading only, which deletes nothing, and looks whether all
// batches are there up to the newest one, and that not less than durable.
func (s *Store) checkContent(durable uint64) (err error) {
	db, err := s.openPebble(true)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := s.disk.fault.write(db.Close); err == nil {
			err = cerr
		}
	}()
	return s.disk.fault.read(func() error {
		last, floor, err := readSeqs(db)
		if err != nil {
			return err
		}
		if last < durable {
			return fmt.Errorf("%w: the newest batch is %d, %d was durable", storage.ErrDamaged, last, durable)
		}
		if err := checkJournal(db, max(floor, 1), last); err != nil {
			return err
		}
		return checkPacked(db, last)
	})
}

// checkPacked ensures that what claims are not in tables can be read, before anything is changed.
func checkPacked(db *pebble.DB, last uint64) (err error) {
	from, err := readSeq(db, packedFromKey)
	if err != nil {
		return err
	}
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: packedKey(from), UpperBound: []byte{packedSpace + 1}})
	if err != nil {
		return asRead(err)
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = asRead(cerr)
		}
	}()
	for ok := it.First(); ok; ok = it.Next() {
		seq, err := parseSeq(it.Key()[1:])
		if err != nil {
			return err
		}
		if seq > last {
			return fmt.Errorf("%w: packed batch %d, the newest batch is %d", storage.ErrDamaged, seq, last)
		}
		if err := eachPacked(it.Value(), func([]byte) bool { return true }, nil); err != nil {
			return fmt.Errorf("packed batch %d: %w", seq, err)
		}
	}
	return asRead(it.Error())
}

// readSeqs returns the number of the newest batch and that from which on the journal is kept.
func readSeqs(db *pebble.DB) (last, floor uint64, err error) {
	if last, err = readSeq(db, lastSeqKey); err == nil {
		floor, err = readSeq(db, trimKey)
	}
	return last, floor, err
}

func readSeq(db *pebble.DB, key byte) (uint64, error) {
	v, closer, err := db.Get([]byte{key})
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, asRead(err)
	}
	defer func() { _ = closer.Close() }()
	return parseSeq(v)
}

// checkJournal ensures that the journal has exactly the entries from first to last.
func checkJournal(db *pebble.DB, first, last uint64) (err error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{journalSpace}, UpperBound: []byte{journalSpace + 1}})
	if err != nil {
		return asRead(err)
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = asRead(cerr)
		}
	}()
	want := first
	for ok := it.First(); ok; ok = it.Next() {
		if key := it.Key(); len(key) != 1+seqSize || binary.BigEndian.Uint64(key[1:]) != want {
			return fmt.Errorf("%w: the journal has an entry %x where %d should be", storage.ErrDamaged, key[1:], want)
		}
		want++
	}
	if err := it.Error(); err != nil {
		return asRead(err)
	}
	if want <= last {
		return fmt.Errorf("%w: the journal ends before entry %d, the newest batch is %d", storage.ErrDamaged, want, last)
	}
	return nil
}

// asRead makes what Pebble found while reading an storage.ErrDamaged, unless the file system itself
// said no.
func asRead(err error) error {
	switch {
	case err == nil, errors.Is(err, storage.ErrDamaged):
		return err
	case pebble.IsCorruptionError(err), errors.Is(err, fs.ErrNotExist), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fmt.Errorf("%w: %w", storage.ErrDamaged, err)
	}
	return fmt.Errorf("hapax: reading the store: %w", err)
}

// asDamage is for errors that only damage or the file system can cause.
func (d *disk) asDamage(doing string, err error) error {
	if d.unreadable.Load() || errors.Is(err, storage.ErrDamaged) {
		return fmt.Errorf("hapax: %s: %w", doing, err)
	}
	return fmt.Errorf("%w: %s: %w", storage.ErrDamaged, doing, err)
}
