package pebble

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// check checks that the directory is complete, without changing a byte. It must run before Pebble
// may write, because Pebble deletes files that it considers garbage. clean reports whether a
// matching record of a clean close exists. unused are the tables to which nothing refers. check
// also loads the packed batches.
func check(l *packedLog) (clean bool, unused []string, err error) {
	clean, err = checkClean(l.core.disk)
	if err != nil {
		return clean, nil, err
	}
	if clean {
		return true, nil, loadClean(l)
	}
	attested, err := readAttestation(l.core.disk)
	if err != nil {
		return false, nil, err
	}
	if err := checkManifest(l.core.disk, attested.manifest); err != nil {
		return false, nil, err
	}
	unused, err = checkContent(l, attested.seq)
	return false, unused, err
}

// checkManifest reads the current MANIFEST to its real end; Pebble takes an unreadable place for
// the end.
func checkManifest(d *failStopFS, attested position) error {
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
// log. It loads the claims that are not in tables into memory, and meanwhile checks the journal and
// the logs that Pebble replays. unused is the result of unusedTables.
func checkContent(l *packedLog, attested uint64) (unused []string, err error) {
	logs := newLogCheck(l.core.disk)
	db, err := l.core.openPebble(logs)
	if err != nil {
		return nil, cmp.Or(logs.wait(), err)
	}
	var last, floor uint64
	err = l.core.fault.read(func() (err error) {
		last, floor, err = readSeqs(db)
		return err
	})
	if err == nil {
		checks := make(chan error)
		halves := halvesOf(max(floor, 1), last+1)
		for _, half := range halves {
			go func() { checks <- l.core.fault.read(func() error { return half.check(db) }) }()
		}
		err = l.core.fault.read(func() error { return l.load(db, last) })
		for range halves {
			err = cmp.Or(<-checks, err)
		}
	}
	if err == nil {
		unused, err = unusedTables(l.core.disk, db)
	}
	err = cmp.Or(logs.wait(), err, l.core.fault.write(db.Close)) // the damage of a log causes the other errors
	if durable := max(attested, logs.durable); err == nil && last < durable {
		err = fmt.Errorf("%w: the newest batch is %d, %d was durable", storage.ErrDamaged, last, durable)
	}
	return unused, err
}

// unusedTables returns the tables to which no MANIFEST refers, such as those of a flush that did
// not fit on the disk. Pebble removes them only after it has opened the store, for which it flushes
// again: without space, each attempt would add more of them.
func unusedTables(d *failStopFS, db *pebble.DB) (unused []string, err error) {
	levels, err := readValue(d.fault, func() ([][]pebble.SSTableInfo, error) { return db.SSTables() })
	if err != nil {
		return nil, err
	}
	used := make(map[uint64]bool)
	for _, tables := range levels {
		for i := range tables {
			used[uint64(tables[i].BackingSSTNum)] = true
		}
	}
	names, err := d.List(d.dir)
	for _, name := range names {
		number := fileNumber(strings.TrimSuffix(name, ".sst"))
		if name == fmt.Sprintf("%06d.sst", number) && !used[number] {
			unused = append(unused, name)
		}
	}
	return unused, err
}

// loadClean opens a cleanly closed store read-only and reads everything that Open needs, because a
// table may be damaged.
func loadClean(l *packedLog) error {
	logs := newLogCheck(l.core.disk)
	db, err := l.core.openPebble(logs)
	if err != nil {
		return cmp.Or(logs.wait(), err)
	}
	err = l.core.fault.read(func() error {
		last, _, err := readSeqs(db)
		if err != nil {
			return err
		}
		return l.load(db, last)
	})
	return cmp.Or(logs.wait(), err, l.core.fault.write(db.Close))
}

// A journalPart is a range of the journal that should have the entries from first to end, without
// end.
type journalPart struct {
	span       pebble.KeyRange
	first, end uint64
}

// halvesOf returns the two halves of the journal. Each half is read on its own processor.
func halvesOf(first, end uint64) [2]journalPart {
	middle := first
	if first < end {
		middle += (end - first) / 2
	}
	at := journalKey(middle)
	return [2]journalPart{
		{pebble.KeyRange{Start: []byte{journalSpace}, End: at}, first, middle},
		{pebble.KeyRange{Start: at, End: []byte{journalSpace + 1}}, middle, end},
	}
}

// check checks that the part has exactly its entries.
func (p journalPart) check(db *pebble.DB) error {
	want := p.first
	err := eachIn(db, p.span, func(it *pebble.Iterator) error {
		if key := it.Key(); want == p.end {
			return fmt.Errorf("%w: the journal has an entry %x after the newest batch, %d", storage.ErrDamaged, key[1:], want-1)
		} else if len(key) != 1+seqSize || binary.BigEndian.Uint64(key[1:]) != want {
			return fmt.Errorf("%w: the journal has an entry %x where %d should be", storage.ErrDamaged, key[1:], want)
		}
		want++
		return nil
	})
	if err == nil && want < p.end {
		err = fmt.Errorf("%w: the journal lacks entry %d", storage.ErrDamaged, want)
	}
	return err
}
