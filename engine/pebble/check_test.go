package pebble

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

// The two halves of the journal together have every entry from the first to the last, and no other:
// whichever is missing, in which half, and whichever is there in addition, one of them reports it.
func TestHalvesOfTheJournalMissNothing(t *testing.T) {
	for _, journal := range []struct{ first, last uint64 }{{1, 0}, {1, 1}, {1, 2}, {7, 6}, {7, 7}, {7, 11}, {7, 12}} {
		first, last := journal.first, journal.last
		for _, changed := range append(span(first, last), 0, first-1, last+1, 1<<62) {
			within := first <= changed && changed <= last
			for _, change := range []bool{false, true} {
				db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem(), Logger: quiet{}})
				if err != nil {
					t.Fatal(err)
				}
				for _, seq := range span(first, last) {
					if !change || seq != changed {
						must(db.Set(journalKey(seq), []byte("entry"), nil))
					}
				}
				if change && !within {
					must(db.Set(journalKey(changed), nil, nil))
				}
				var got error
				for _, half := range halvesOf(first, last+1) {
					got = errors.Join(got, half.check(db))
				}
				must(db.Close())
				if change != errors.Is(got, storage.ErrDamaged) {
					t.Errorf("from %d to %d, entry %d changed %v: %v", first, last, changed, change, got)
				}
			}
		}
	}
	for _, half := range halvesOf(9, 3) { // of a store that is damaged otherwise
		if half.first != 9 || half.end > 9 {
			t.Errorf("a half from %d to %d", half.first, half.end)
		}
	}
}

// A batch that is missing in the middle of the journal is damage to a store that was killed.
func TestAKilledStoreWhoseJournalHasAGapIsDamaged(t *testing.T) {
	for _, gap := range []uint64{0, 1, 5, 11, 12} {
		fsys := crashfs.New()
		s := mustOpen(t, fsys, "store", true)
		const last = 12
		for seq := uint64(1); seq <= last; seq++ {
			mustApply(t, s, batchOf(seq, 20))
		}
		must(s.core.db.Delete(journalKey(gap), pebble.Sync)) // there is no batch 0
		killed := fsys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng(1)})
		mustClose(t, s)
		s, err := Open("store", Options{FS: killed, SmallTables: true, CacheBytes: 1 << 20})
		if (gap > 0) != errors.Is(err, storage.ErrDamaged) {
			t.Errorf("entry %d is missing: %v", gap, err)
		}
		if err == nil {
			mustClose(t, s)
		}
	}
}

func span(first, last uint64) (seqs []uint64) {
	for seq := first; seq <= last; seq++ {
		seqs = append(seqs, seq)
	}
	return seqs
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}
