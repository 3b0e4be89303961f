package enginetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
)

// compare reads all that the engine shows.
func (c *checker) compare() {
	if d := c.difference(c.told); d != "" {
		c.Fatalf("%s", d)
	}
	c.compareClaims()
	r, err := c.e.Admin().Verify(context.Background())
	if err != nil || r.Total != 0 || int(r.Claims) != len(c.told.claims) {
		c.Fatalf("Verify: %+v, %v; %d claims were made", r, err, len(c.told.claims))
	}
	weeks, err := c.e.Weeks(context.Background())
	if errors.Is(err, engine.ErrRebuilding) {
		return
	}
	n := map[storage.Bucket]uint64{}
	for k := range c.told.claims {
		n[storage.Bucket{Scope: k.scope, Week: k.week}]++
	}
	for _, w := range weeks {
		for _, s := range w.Scopes {
			b := storage.Bucket{Scope: s.Scope, Week: w.Week}
			if s.Claims != n[b] {
				c.Fatalf("Weeks: %d claims of %v, want %d", s.Claims, b, n[b])
			}
			delete(n, b)
		}
	}
	if err != nil || len(n) != 0 {
		c.Fatalf("Weeks misses %v, %v", n, err)
	}
}

// difference describes how the engine differs from f, "" if it does not.
func (c *checker) difference(f *facts) (d string) {
	for k, want := range f.claims {
		r, found, err := c.e.Admin().Lookup(context.Background(), k.scope, []byte(k.id), k.week.Start())
		if err != nil || !found || r != want {
			return fmt.Sprintf("claim %v is %+v %v %v, want %+v", k, r, found, err, want)
		}
	}
	if got := c.e.Retention().OldestWeek(); got != f.oldest {
		return fmt.Sprintf("the oldest week is %v, want %v", got, f.oldest)
	}
	if holds := c.e.Holds(); len(holds) != len(f.holds) || slices.ContainsFunc(holds, func(h engine.Hold) bool { return !h.At.Equal(f.holds[h.Name].Start()) }) {
		return fmt.Sprintf("holds are %v, want %v", holds, f.holds)
	}
	err := c.e.Update(context.Background(), func(tx *engine.Tx) error {
		for _, k := range modelKeys {
			v, found, err := tx.Get([]byte(k))
			if want, there := f.host[k]; err != nil || found != there || string(v) != want {
				d = fmt.Sprintf("key %q is %q %v %v, want %q %v", k, v, found, err, want, there)
			}
		}
		for _, p := range []int32{0, 1, 9} {
			o, found, err := tx.Offset(modelPosition(p))
			if want, there := f.offsets[p]; err != nil || found != there || o.Next != want {
				d = fmt.Sprintf("offset of %d is %v %v %v, want %v %v", p, o, found, err, want, there)
			}
		}
		return nil
	})
	if err != nil && d == "" {
		d = err.Error()
	}
	if d == "" {
		d = c.iterations(f)
	}
	return d
}

// iterations describes how the keys and offsets that the engine iterates over differ from f.
func (c *checker) iterations(f *facts) string {
	keys := map[string]string{}
	for kv, err := range c.e.Scan(context.Background(), engine.Range{}) {
		if err != nil {
			return err.Error()
		}
		keys[string(kv.Key)] = string(kv.Value)
	}
	if !maps.Equal(keys, f.host) {
		return fmt.Sprintf("keys are %q, want %q", keys, f.host)
	}
	for key, want := range f.host {
		if v, found, err := c.e.Get(context.Background(), []byte(key)); err != nil || !found || string(v) != want {
			return fmt.Sprintf("key %q is %q %v %v, want %q", key, v, found, err, want)
		}
	}
	offsets := map[int32]int64{}
	kept, err := c.e.Admin().Offsets(context.Background(), "g")
	if err != nil {
		return err.Error()
	}
	for p, o := range kept {
		offsets[p.Partition] = o.Next
	}
	if !maps.Equal(offsets, f.offsets) {
		return fmt.Sprintf("offsets are %v, want %v", offsets, f.offsets)
	}
	return ""
}

// compareClaims iterates over the claims of each bucket.
func (c *checker) compareClaims() {
	got, buckets := map[claimKey]engine.ClaimRecord{}, map[storage.Bucket]bool{}
	for k := range c.told.claims {
		buckets[storage.Bucket{Scope: k.scope, Week: k.week}] = true
	}
	for b := range buckets {
		for claim, err := range c.e.Admin().Claims(context.Background(), b, nil) {
			if err != nil {
				c.Fatalf("claims of %v: %v", b, err)
			}
			got[claimKey{b.Scope, b.Week, string(claim.ID)}] = claim.Record
		}
	}
	if !maps.Equal(got, c.told.claims) {
		c.Fatalf("claims are %v, want %v", got, c.told.claims)
	}
}
