package pebble

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// check checks that the directory contains all that it should, without changing a byte, and before
// Pebble, which deletes files that it considers garbage, may write. clean says that there is a
// record of a clean close that matches.
//
// If it is not clean, check has loaded the packed batches.
func check(l *packedLog) (clean bool, err error) {
	clean, err = checkClean(l.disk)
	if clean || err != nil {
		return clean, err
	}
	attested, err := readAttestation(l.disk)
	if err != nil {
		return false, err
	}
	if err := checkManifest(l.disk, attested.manifest); err != nil {
		return false, err
	}
	return false, checkContent(l, attested.seq)
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

// checkContent opens the store read-only, which deletes nothing, and checks that all batches up to
// the newest one exist, and at least those that are attested or covered by a durability record of a
// log. It reads the claims outside of tables into memory. The logs that Pebble replays, and the
// journal, are checked meanwhile.
func checkContent(l *packedLog, attested uint64) (err error) {
	logs := newLogCheck(l.disk)
	db, err := l.openPebble(logs)
	if err != nil {
		return cmp.Or(logs.wait(), err)
	}
	var last, floor uint64
	err = l.fault.read(func() (err error) {
		last, floor, err = readSeqs(db)
		return err
	})
	if err == nil {
		journal := make(chan error)
		go func() {
			journal <- l.fault.read(func() error { return checkJournal(db, max(floor, 1), last) })
		}()
		err = l.fault.read(func() error { return l.load(db, last) })
		err = cmp.Or(<-journal, err)
	}
	err = cmp.Or(logs.wait(), err, l.fault.write(db.Close)) // damage of a log causes what else is missing
	if durable := max(attested, logs.promised); err == nil && last < durable {
		err = fmt.Errorf("%w: the newest batch is %d, %d was durable", storage.ErrDamaged, last, durable)
	}
	return err
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
