package versions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
)

// Pruned counts the results of a pass of Prune.
type Pruned struct {
	Versions  uint64 // older versions that were removed
	Deletions uint64 // newest versions that were removed: deletions older than Options.KeepDeletions
	Renewed   uint64 // deletions that are kept for Options.KeepDeletions again: see Prune
	// versions that are left for the next pass, because transactions wrote their rows meanwhile
	Deferred uint64
}

const (
	pruneKeys    = 1000    // removed in one transaction
	pruneBytes   = 1 << 20 // of keys that are removed in one transaction
	pruneRetries = 10

	minOverdue = 48 * time.Hour // see Table.overdue
)

// Prune removes every version that a newer one of its row has replaced, and expired deletions. It
// keeps versions from which a partial row takes values, and equal versions, which identify repeats.
// It reads the table once, and removes versions in transactions of at most 1000. Only
// ScanWithOlderVersions sees a difference. A version is replaced once the newer one is durable, and
// is removed only if the newer one still exists at that moment. So Prune may run concurrently with
// all other calls, and may be stopped at any point.
//
// A wrong clock must not remove deletions that the table still needs. So Prune removes a deletion
// only within two days after it has expired, or within twice Options.PruneEvery if that is longer.
// A deletion that expired earlier may result from a clock that is ahead now, or was behind when the
// deletion was written. Prune gives it the current time, so that it is kept for
// Options.KeepDeletions again. As a consequence, deletions that expire while no pass runs for that
// long are kept longer than necessary, and if calls of Prune are always further apart, they never
// remove any. In this case set Options.PruneEvery to the time between calls, or use
// PruneAllExpired.
//
// The store frees the space as it compacts: Pebble by itself, or at once by Reclaim; bbolt reuses
// free pages.
func (t *Table) Prune(ctx context.Context) (Pruned, error) { return t.prune(ctx, false) }

// PruneAllExpired is Prune that trusts the clock: it removes all expired deletions, no matter for
// how long they have been expired, and gives deletions with a later time than now the current time.
// Check the clock before you call it.
func (t *Table) PruneAllExpired(ctx context.Context) (Pruned, error) { return t.prune(ctx, true) }

func (t *Table) prune(ctx context.Context, trustClock bool) (done Pruned, err error) {
	p := pass{t: t, ctx: ctx, trustClock: trustClock, done: &done}
	for g, err := range t.groups(driver.In(t.eng, rowSpace).Scan(ctx, engine.Range{Prefix: t.prefix})) {
		if err == nil {
			err = p.see(g)
		}
		if err != nil {
			return done, err
		}
	}
	if err := p.endRow(); err != nil {
		return done, err
	}
	return done, p.flush()
}

// A pass is one run over the table.
type pass struct {
	t          *Table
	ctx        context.Context //nolint:containedctx // the context of one call of Prune
	trustClock bool
	done       *Pruned

	row    []byte // prefix of the current row
	newest []byte // key of its newest version
	fate   fate   // fate of the newest version
	merged merged // the row that readers see, as far as it was read

	older  []replaced
	rows   [][]byte // prefixes of rows whose newest versions are deletions that must be removed or renewed
	bytes  int      // bytes of the keys in older and rows
	events int      // their number
}

// A replaced version is older than the newest one of its row.
type replaced struct{ key, newest []byte }

// see processes the next group of the table.
func (p *pass) see(g *group) (err error) {
	if !bytes.Equal(g.row, p.row) {
		if err := p.endRow(); err != nil {
			return err
		}
		p.row, p.newest, p.merged = g.row, g.all[0].kv.Key, merged{}
		if p.fate, err = p.fateOf(g.all[0].kv); err != nil {
			return err
		}
	}
	needed, err := p.merged.add(p.t, g)
	if err != nil {
		return err
	}
	switch {
	case g.isErased(): // an erasure remains, and hides late versions after a newer deletion is removed
		err = p.replaced(g.all[1:])
	case !needed:
		err = p.replaced(g.all)
	}
	return errors.Join(err, p.replaced(g.repeats))
}

// replaced collects versions to be removed.
func (p *pass) replaced(versions []stored) error {
	for _, v := range versions {
		p.older = append(p.older, replaced{v.kv.Key, p.newest})
		if err := p.collected(v.kv.Key); err != nil {
			return err
		}
	}
	return nil
}

// endRow ends the current row.
func (p *pass) endRow() error {
	if p.fate == keep {
		return nil
	}
	p.fate = keep
	p.rows = append(p.rows, p.row)
	return p.collected(p.row)
}

// collected counts a version that the next transaction will change, and runs the transaction if it
// is full.
func (p *pass) collected(key []byte) error {
	p.bytes += len(key)
	p.events++
	if p.events < pruneKeys && p.bytes < pruneBytes {
		return nil
	}
	return p.flush()
}

// A fate says what a pass does with the newest version of a row.
type fate uint8

const (
	keep   fate = iota
	remove      // an expired deletion
	renew       // a deletion whose time may be wrong: give it the current time
)

// fateOf returns the fate of a newest version. It is keep unless the version is a deletion.
func (p *pass) fateOf(kv engine.KeyValue) (fate, error) {
	o := &p.t.opt
	if o.KeepDeletions == 0 || len(kv.Value) == 0 || kv.Value[0] != kindDeletion {
		return keep, nil
	}
	micros, _, ok := cutTime(kv.Value[1:])
	if !ok {
		return keep, damaged("value of the row with key %x", kv.Key)
	}
	age := o.Clock().Sub(time.UnixMicro(micros))
	switch {
	case age < 0 && p.trustClock:
		return renew, nil
	case age <= o.KeepDeletions:
		return keep, nil
	case p.trustClock || age-o.KeepDeletions <= p.t.overdue():
		return remove, nil
	default:
		return renew, nil
	}
}

// overdue returns how long ago a deletion can have expired when Prune finds it, if the clock is
// right and passes run regularly. After a jump of the clock, only deletions that expired in such a
// span of time are removed at once.
func (t *Table) overdue() time.Duration { return max(minOverdue, 2*t.opt.PruneEvery) }

// flush removes the collected versions.
func (p *pass) flush() error {
	if p.events == 0 {
		return nil
	}
	var now Pruned
	err := p.t.eng.Update(p.ctx, func(tx *engine.Tx) error {
		now = Pruned{}
		rows := driver.TxIn(tx, rowSpace)
		if err := p.removeOlder(rows, &now); err != nil {
			return err
		}
		for _, row := range p.rows {
			if err := p.endDeletion(rows, row, &now); err != nil {
				return err
			}
		}
		return nil
	}, engine.Retries(pruneRetries))
	if errors.Is(err, engine.ErrConflict) {
		now, err = Pruned{Deferred: uint64(p.events)}, nil
	}
	if err != nil {
		return fmt.Errorf("hapax: versions: removing replaced versions: %w", err)
	}
	p.done.Versions += now.Versions
	p.done.Deletions += now.Deletions
	p.done.Renewed += now.Renewed
	p.done.Deferred += now.Deferred
	p.older, p.rows, p.bytes, p.events = p.older[:0], p.rows[:0], 0, 0
	return nil
}

// removeOlder removes versions whose newer ones exist.
func (p *pass) removeOlder(rows driver.TxKeys, now *Pruned) error {
	var newest []byte
	found := false
	for _, o := range p.older {
		if !bytes.Equal(o.newest, newest) {
			var err error
			if _, found, err = rows.Get(o.newest); err != nil {
				return err
			}
			newest = o.newest
		}
		if !found { // the newer version was replaced too: the next pass removes this one
			now.Deferred++
			continue
		}
		if err := rows.Delete(o.key); err != nil {
			return err
		}
		now.Versions++
	}
	return nil
}

// endDeletion removes or renews an expired deletion that is the newest version of its row. With the
// deletion it removes all versions of the row except for an erasure.
func (p *pass) endDeletion(rows driver.TxKeys, row []byte, now *Pruned) error {
	var keys [][]byte
	first := true
	for g, err := range p.t.groups(rows.Scan(engine.Range{Prefix: row})) {
		if err != nil {
			return err
		}
		if newest := g.all[0].kv; first {
			first = false
			switch f, err := p.fateOf(newest); {
			case err != nil || f == keep:
				return err
			case f == renew:
				now.Renewed++
				value, _ := (&Row{Deleted: true}).encode(p.t.opt.Clock)
				return rows.Put(newest.Key, value)
			}
		}
		for _, v := range slices.Concat(g.all, g.repeats) {
			if v.place.tie != tieErasure {
				keys = append(keys, v.kv.Key)
			}
		}
		if len(keys) >= pruneKeys-1 {
			break
		}
	}
	if len(keys) >= pruneKeys-1 { // there may be more versions: remove the older ones first
		now.Deferred++
		return nil
	}
	for _, key := range keys {
		if err := rows.Delete(key); err != nil {
			return err
		}
	}
	now.Versions += uint64(max(len(keys)-1, 0))
	now.Deletions += uint64(min(len(keys), 1))
	return nil
}

// Run calls Prune at once and then every Options.PruneEvery, until ctx ends, which returns nil.
// It returns the first error of a pass; the table can be used without it, and Run can be called
// again.
func (t *Table) Run(ctx context.Context) error {
	tick := time.NewTicker(t.opt.PruneEvery)
	defer tick.Stop()
	for {
		done, err := t.Prune(ctx)
		if ctx.Err() != nil {
			return nil // ctx has ended
		}
		if err != nil {
			return err
		}
		if done != (Pruned{}) {
			t.opt.Logger.InfoContext(ctx, "versions: removed replaced versions", "table", string(t.name),
				"versions", done.Versions, "deletions", done.Deletions, "renewed", done.Renewed, "deferred", done.Deferred)
		}
		if done.Renewed > 0 {
			t.opt.Logger.WarnContext(ctx, "versions: deletions that expired long ago are kept for KeepDeletions again: "+
				"the clock is or was wrong, or no pass ran for days", "table", string(t.name), "renewed", done.Renewed)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Reclaim frees the disk space of removed versions at once, as far as the store can: Pebble
// rewrites the table's files; bbolt reuses the space by itself, and only a Backup of it is smaller.
// It returns when that is done or ctx ends.
func (t *Table) Reclaim(ctx context.Context) error {
	return driver.In(t.eng, rowSpace).Reclaim(ctx, t.prefix)
}
