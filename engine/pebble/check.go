package pebble

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// check checks that the directory contains all that it should, without changing a byte, and before
// Pebble, which deletes files that it considers garbage, may write. clean says that there is a
// record of a clean close that matches.
func check(c *core) (clean bool, err error) {
	clean, err = checkClean(c.disk)
	if clean || err != nil {
		return clean, err
	}
	attested, err := readAttestation(c.disk)
	if err != nil {
		return false, err
	}
	if err := checkManifest(c.disk, attested.manifest); err != nil {
		return false, err
	}
	promised, err := checkLogs(c.disk)
	if err != nil {
		return false, err
	}
	return false, checkContent(c, max(attested.seq, promised))
}

// checkManifest reads the current MANIFEST to its end, which Pebble assumes where it cannot read
// on.
func checkManifest(d *disk, attested position) error {
	desc, err := pebble.Peek(d.dir, d)
	if err != nil {
		return asDamage(d, "looking for the MANIFEST", err)
	}
	if !desc.Exists {
		return fmt.Errorf("%w: no MANIFEST", storage.ErrDamaged)
	}
	name := d.PathBase(desc.ManifestFilename)
	data, err := readFile(d, desc.ManifestFilename)
	if err != nil {
		return asDamage(d, "reading "+name, err)
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

// checkLogs reads all logs to their ends and returns the newest batch that their durability records
// cover.
func checkLogs(d *disk) (promised uint64, err error) {
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
			return 0, asDamage(d, "reading "+name, err)
		}
		scan := scanLog(data, uint32(fileNumber(name)))
		if scan.proof {
			return 0, fmt.Errorf("%w: %s is unreadable at byte %d, which was durable", storage.ErrDamaged, name, scan.valid)
		}
		promised = max(promised, scan.newest)
	}
	return promised, nil
}

// checkContent opens the store read-only, which deletes nothing, and checks that all batches up to
// the newest one exist, and at least those up to durable.
func checkContent(c *core, durable uint64) (err error) {
	db, err := c.openPebble(true)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := c.disk.fault.write(db.Close); err == nil {
			err = cerr
		}
	}()
	return c.disk.fault.read(func() error {
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

// checkPacked checks that the claims outside of tables can be read, before anything is changed.
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

// checkJournal checks that the journal has exactly the entries from first to last.
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
