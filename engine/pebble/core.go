package pebble

import (
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/pebble/internal/runs"
)

// A core is what the parts of a store share: options, directory and lock, Pebble, and whether the
// store has failed.
type core struct {
	o       Options
	disk    *failStopFS
	fault   *fault
	startup *startup
	db      *pebble.DB
	tight   bool // see recoverTight

	recentRuns *runs.Index // nil if no caller looks claims up

	// maintenance is held while the journal is trimmed or sidecars are written, and by a backup
	// while it copies both.
	maintenance sync.Mutex
}

// openPebble opens the directory, which is locked, with Pebble. If logs is not nil, Pebble writes
// nothing, and logs checks the logs that it reads.
func (c *core) openPebble(logs *logCheck) (*pebble.DB, error) {
	d := c.disk
	o := c.o.pebbleOptions(d)
	if logs != nil {
		o.ReadOnly, o.FS = true, logs
	}
	o.DisableTableStats = c.tight
	o.EventListener.TableDeleted = func(info pebble.TableDeleteInfo) {
		d.damages.forget(tableName(uint64(info.FileNum)))
		if c.recentRuns != nil {
			c.recentRuns.Deleted(info)
		}
	}
	if c.recentRuns != nil {
		o.Cache = c.recentRuns.Cache()
		o.EventListener.TableIngested = c.recentRuns.Ingested
	}
	compactions := newScheduler(c.startup)
	o.EventListener.BackgroundError = func(err error) {
		_, _, ok := confined(err)
		switch {
		case ok && !inTableStats():
			compactions.metDamage()
		case !ok && pebble.IsCorruptionError(err):
			d.fault.noteDamage(err)
		}
	}
	o.Experimental.CompactionScheduler = compactions
	var db *pebble.DB
	err := d.fault.write(func() error {
		d.opening.Store(logs == nil)
		defer d.opening.Store(false)
		opened, err := pebble.Open(d.dir, o)
		if err == nil && d.fault.get() != nil {
			return opened.Close() // no caller waits any more
		}
		if err == nil {
			compactions.start()
		}
		db = opened
		return err
	})
	switch {
	case d.fault.get() != nil:
		return nil, d.fault.get()
	case err != nil:
		return nil, asDamage(d, "opening the store", err)
	}
	return db, nil
}

// recoverTight opens and closes Pebble if there may be too little space to move the log to tables. Where
// that fails, Pebble closes its tables while it may still read their statistics, and the process would
// end with a panic: so there are none meanwhile.
func (c *core) recoverTight() error {
	names, err := c.disk.List(c.disk.dir)
	if err != nil {
		return err
	}
	need := uint64(tightBytes)
	for _, name := range names {
		if info, err := c.disk.Stat(c.disk.path(name)); err == nil && strings.HasSuffix(name, logSuffix) {
			need += 2 * uint64(info.Size())
		}
	}
	usage, err := c.disk.GetDiskUsage(c.disk.dir)
	if err != nil || usage.AvailBytes >= need {
		return nil // a file system that does not know its space
	}
	c.tight = true
	defer func() { c.tight = false }()
	db, err := c.openPebble(nil)
	if err != nil {
		return err
	}
	return c.fault.write(db.Close)
}

const tightBytes = 16 << 20

// begin finds the last batch of the store and the first entry of its journal, and attests the
// former: all that Pebble recovered is in synced tables now.
func (c *core) begin() (last, floor uint64, err error) {
	seqs, err := readValue(c.fault, func() (seqs struct{ last, floor uint64 }, err error) {
		seqs.last, seqs.floor, err = readSeqs(c.db)
		return seqs, err
	})
	if err != nil {
		return 0, 0, err
	}
	last, floor = seqs.last, seqs.floor
	return last, floor, writeAttestation(c.disk, attestation{last, currentManifest(c.disk)})
}

// mirror keeps the index of runs up to date until stop is closed. It begins after the startup: the
// first verdict does not wait for it.
func (c *core) mirror(stop <-chan struct{}) {
	select {
	case <-c.startup.over:
	case <-c.fault.failed:
		return
	}
	for {
		// Whatever it cannot read is looked up in Pebble.
		_ = c.fault.read(func() error { return c.recentRuns.Refresh(c.db, stop) })
		select {
		case <-c.recentRuns.Changed():
		case <-stop:
			return
		case <-c.fault.failed:
			return
		}
	}
}

// patience is how long Close waits for a failed disk or a failed Pebble.
const patience = 10 * time.Second

// liveLogs returns how many logs are not all in tables.
func (c *core) liveLogs() (int, error) {
	return readValue(c.fault, func() (int, error) { return int(c.db.Metrics().WAL.Files), nil })
}

// forgetLogs makes the reserve forget logs after each flush, until stop is closed.
func (c *core) forgetLogs(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-c.disk.emptied:
			c.disk.reserve.forgetLogs(c.liveLogs)
		}
	}
}
