package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A recorder notes which pages of a file are read.
type recorder struct {
	io.ReaderAt
	pageSize int64
	pages    map[uint64]bool
}

func (r *recorder) ReadAt(b []byte, off int64) (int, error) {
	for at := off; at < off+int64(len(b)); at += r.pageSize {
		r.pages[uint64(at/r.pageSize)] = true
	}
	return r.ReaderAt.ReadAt(b, off)
}

// pagesOf returns the pages of all trees but those of the root and of the head, which every
// transaction changes.
func pagesOf(t *testing.T, s *Store, claims bool) (used map[uint64]string) {
	t.Helper()
	used = map[uint64]string{}
	err := s.core.view(func(tx *readTx) error {
		var trees []pages.Tree
		for _, name := range [][]byte{claimsDir, journalDir, stateDir, sumsDir} {
			dir, err := tx.dir(name)
			if err != nil {
				return err
			}
			trees = append(trees, dir)
		}
		err := tx.buckets(func(prefix []byte, _ sum) error {
			bucket, _, err := tx.bucket(prefix)
			if claims {
				trees = append(trees, bucket)
			}
			return err
		})
		for _, tree := range trees {
			err = errors.Join(err, tree.With(func(c *pages.Cursor) error {
				c.Seen = func(id, n uint64) error {
					for i := range n {
						used[id+i] = tree.What
					}
					return nil
				}
				err := c.First()
				for err == nil && !c.Done() {
					err = c.Next()
				}
				return err
			}))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return used
}

// update runs a transaction and reports each page that bbolt has read, since it is not in use any
// more, and the store has not.
func update(t *testing.T, s *Store, what string, claims bool, fn func(w *writeTx) error) (read int) {
	t.Helper()
	before := pagesOf(t, s, claims)
	r := &recorder{pageSize: int64(s.core.pageSize), pages: map[uint64]bool{}}
	err := s.writer.update(func(w *writeTx) error {
		r.ReaderAt, w.base.pages.File = w.base.pages.File, r
		return fn(w)
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	after := pagesOf(t, s, claims)
	for id, of := range before {
		if after[id] != "" {
			continue
		}
		if read++; !r.pages[id] {
			t.Errorf("%s: bbolt has read page %d (%s), which was not checked before", what, id, of)
		}
	}
	return read
}

// Keys of several hundred bytes make trees of many levels, the pages of which have few elements.
func TestPagesThatBoltMergesAreChecked(t *testing.T) {
	seeds := max(8/sparse, 2)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 3))
		s := mustOpen(t, filepath.Join(t.TempDir(), "store"), Options{})
		key := func() string {
			return fmt.Sprintf("%08x%s", rng.Uint32(), strings.Repeat("k", rng.IntN(seed*150+50)))
		}
		bucket := func(i int) storage.Bucket {
			return storage.Bucket{Scope: fmt.Sprintf("%03d%s", i, strings.Repeat("s", 200)), Week: 105000}
		}
		const buckets = 300 // the first one has most claims
		claims, states := map[string]bool{}, map[string]bool{}
		for seq := uint64(1); seq <= 30; seq++ {
			b := &storage.Batch{Seq: seq, Journal: make([]byte, rng.IntN(2000))}
			growing := seq%6 < 2
			for range 400 {
				if !growing && rng.IntN(20) > 0 {
					continue
				}
				c, v := string(bucket(0).AppendKey(nil, []byte(key()))), key()
				claims[c], states[v] = true, true
				b.Claims = append(b.Claims, storage.ClaimWrite{Key: []byte(c), Record: []byte("r")})
				b.State = append(b.State, storage.StateWrite{Key: []byte(v), Value: make([]byte, rng.IntN(100))})
			}
			for i := range buckets {
				if growing || rng.IntN(3) == 0 {
					k := bucket(i+1).AppendKey(nil, []byte("id"))
					b.Claims = append(b.Claims, storage.ClaimWrite{Key: k})
					if growing {
						b.Claims[len(b.Claims)-1].Record = []byte("r")
					}
				}
			}
			for _, k := range someOf(rng, claims, growing) {
				b.Claims = append(b.Claims, storage.ClaimWrite{Key: []byte(k)})
			}
			for _, k := range someOf(rng, states, growing) {
				b.State = append(b.State, storage.StateWrite{Key: []byte(k)})
			}
			n := update(t, s, fmt.Sprintf("seed %d, batch %d", seed, seq), true, func(w *writeTx) error {
				w.head.seq = seq
				return errors.Join(w.claims(b.Claims), w.states(b.State), w.journal(seq, b.Journal))
			})
			if n == 0 && seq > 1 {
				t.Errorf("seed %d, batch %d changes no page", seed, seq)
			}
			if t.Failed() {
				t.FailNow()
			}
		}
		// Drop reads the buckets themselves in an earlier transaction.
		var dropped [][]byte
		if err := s.Buckets(func(b storage.Bucket) error {
			dropped = append(dropped, b.AppendPrefix(nil))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		dropped = dropped[len(dropped)/3 : len(dropped)/2]
		update(t, s, fmt.Sprintf("seed %d, drop", seed), false, func(w *writeTx) error {
			for _, prefix := range dropped {
				if err := w.drop(prefix); err != nil {
					return err
				}
			}
			return nil
		})
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// someOf removes some keys, mostly of some ranges.
func someOf(rng *rand.Rand, all map[string]bool, few bool) (keys []string) {
	sorted := slices.Sorted(maps.Keys(all))
	for range 3 {
		from := rng.IntN(len(sorted) + 1)
		to := min(from+rng.IntN(len(sorted)/4+1), len(sorted))
		for _, k := range sorted[from:to] {
			if all[k] && rng.IntN(8) > 0 && (!few || rng.IntN(10) == 0) {
				keys = append(keys, k)
				delete(all, k)
			}
		}
	}
	return keys
}

// A page with a wrong number of entries, merged with another one, would lose the others for good.
func TestADamagedPageIsNotMerged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := mustOpen(t, dir, Options{LockTimeout: shortLock})
	defer s.Close()
	g := newClaims("v7")
	writes := g.next(3000)
	mustApply(t, s, &storage.Batch{Seq: 1, Claims: writes})
	var leaves []uint64
	entries := map[uint64][]storage.ClaimWrite{}
	err := s.core.view(func(tx *readTx) error {
		bucket, _, err := tx.bucket(g.bucket.AppendPrefix(nil))
		if err != nil {
			return err
		}
		return bucket.With(func(c *pages.Cursor) error {
			leaf := uint64(0)
			c.Seen = func(id, _ uint64) error { leaf = id; return nil }
			err := c.First()
			for i := 0; err == nil && !c.Done(); i++ {
				if len(entries[leaf]) == 0 {
					leaves = append(leaves, leaf)
				}
				entries[leaf] = append(entries[leaf], writes[i])
				err = c.Next()
			}
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	damaged, changed := leaves[4], leaves[5]
	overwrite(t, dir, func(page []byte) bool {
		if binary.NativeEndian.Uint64(page) != damaged {
			return false
		}
		binary.NativeEndian.PutUint16(page[10:], binary.NativeEndian.Uint16(page[10:])/2)
		return true
	})
	b := &storage.Batch{Seq: 2}
	for _, w := range entries[changed][1:] {
		b.Claims = append(b.Claims, storage.ClaimWrite{Key: w.Key})
	}
	if _, err := s.Apply(b); !errors.Is(err, storage.ErrDamaged) || !errors.Is(err, ErrFailed) {
		t.Errorf("Apply: %v", err)
	}
	for _, w := range entries[damaged] {
		if _, found, err := s.Claim(w.Key); !found && !errors.Is(err, storage.ErrDamaged) {
			t.Fatalf("claim %x of the damaged page: found %v, %v", w.Key, found, err)
		}
	}
}
