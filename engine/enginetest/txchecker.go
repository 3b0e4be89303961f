package enginetest

import (
	"errors"
	"math"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
)

// A txChecker makes calls in a transaction and in its model.
type txChecker struct {
	*checker
	t  *rapid.T
	tx *engine.Tx
	x  *txModel
}

func (c *txChecker) get(key string) {
	v, found, err := c.tx.Get([]byte(key))
	if _, own := c.x.host[key]; (!own || c.x.lost) && !c.x.reading(key) {
		if !errors.Is(err, engine.ErrConflict) {
			c.Fatalf("reading %q, which was overwritten: %v", key, err)
		}
		return
	}
	want, there, wantErr := c.x.seen(key)
	if !sameError(err, wantErr) || found != there || string(v) != want {
		c.Fatalf("key %q reads %q %v %v, want %q %v", key, v, found, err, want, there)
	}
}

// scan iterates over a range of keys, sometimes not to its end.
func (c *txChecker) scan() {
	texts := rapid.SampledFrom([]string{"", "", "k", "k\x00", "l", "c"})
	prefix, after := texts.Draw(c.t, "prefix"), texts.Draw(c.t, "after")
	most := rapid.IntRange(1, 4).Draw(c.t, "most")
	var got, want []string
	var last, wantErr error
	for kv, err := range c.tx.Scan(engine.Range{Prefix: []byte(prefix), After: []byte(after)}) {
		if last = err; err != nil {
			break
		}
		if got = append(got, string(kv.Key)+"="+string(kv.Value)); len(got) == most {
			break
		}
	}
	for _, key := range slices.Sorted(slices.Values(modelKeys)) {
		if !strings.HasPrefix(key, prefix) || after != "" && key <= after || len(want) == most {
			continue
		}
		if !c.x.reading(key) {
			break
		}
		var value string
		var there bool
		if value, there, wantErr = c.x.seen(key); wantErr != nil {
			break
		}
		if there {
			want = append(want, key+"="+value)
		}
	}
	if c.x.lost {
		wantErr = engine.ErrConflict
	}
	if !slices.Equal(got, want) || !sameError(last, wantErr) {
		c.Fatalf("keys after %q with prefix %q: %q, %v; want %q", after, prefix, got, last, want)
	}
}

func (c *txChecker) offset(p int32) {
	o, found, err := c.tx.Offset(modelPosition(p))
	want, there := c.told.offsets[p]
	if own, ok := c.x.offsets[p]; ok && !c.x.lost {
		want, there = own, true
	} else if !c.x.reading(offsetName(p)) {
		if !errors.Is(err, engine.ErrConflict) {
			c.Fatalf("reading offset %d, which was overwritten: %v", p, err)
		}
		return
	}
	if err != nil || found != there || o.Next != want {
		c.Fatalf("offset %d reads %v %v %v, want %v %v", p, o.Next, found, err, want, there)
	}
}

func (c *txChecker) put(key string) error {
	v := rapid.SampledFrom(modelValues).Draw(c.t, "value")
	err := c.tx.Put([]byte(key), []byte(v))
	if err == nil {
		c.x.host[key] = &v
		delete(c.x.adds, key)
	}
	return err
}

func (c *txChecker) remove(key string) error {
	err := c.tx.Delete([]byte(key))
	if err == nil {
		c.x.host[key] = nil
		delete(c.x.adds, key)
	}
	return err
}

func (c *txChecker) setOffset(p int32) error {
	err := c.tx.SetOffset(modelPosition(p), engine.Offset{Next: c.n})
	if err == nil {
		c.x.offsets[p] = c.n
	}
	return err
}

// add adds to a key.
func (c *txChecker) add(key string) {
	delta := rapid.SampledFrom([]int64{0, 1, 1, -1, -1, math.MaxInt64, math.MinInt64}).Draw(c.t, "delta")
	sum, added := c.x.adds[key]
	own, written := c.x.host[key]
	var value string
	var want error
	switch {
	case c.x.lost:
		want = engine.ErrConflict
	case written && own == nil:
		value, want = plus("", false, delta)
	case written:
		value, want = plus(*own, true, delta)
	default:
		value, want = plus(string(engine.EncodeInt64(sum)), added, delta)
	}
	if err := c.tx.Add([]byte(key), delta); !sameError(err, want) {
		c.Fatalf("adding %d to %q: %v, want %v", delta, key, err, want)
	}
	switch {
	case want != nil:
	case written:
		c.x.host[key] = &value
	default:
		c.x.adds[key], _ = engine.DecodeInt64([]byte(value))
	}
}

// save takes a savepoint.
func (c *txChecker) save() error {
	s, err := c.tx.Savepoint()
	if err == nil {
		c.x.saves = append(c.x.saves, modelSave{s, c.x.clone()})
	}
	return err
}

// back rolls back to a savepoint, which remains valid.
func (c *txChecker) back() error {
	if len(c.x.saves) == 0 {
		_, err := c.tx.Savepoint()
		return err
	}
	i := rapid.IntRange(0, len(c.x.saves)-1).Draw(c.t, "savepoint")
	if err := c.tx.RollbackTo(c.x.saves[i].point); err != nil {
		return err
	}
	c.x.saves = c.x.saves[:i+1]
	old := c.x.saves[i].state.clone()
	for k := range c.x.claims {
		if _, kept := old.claims[k]; !kept {
			delete(c.held, k)
		}
	}
	c.x.claims, c.x.host, c.x.offsets, c.x.adds, c.x.unclaims = old.claims, old.host, old.offsets, old.adds, old.unclaims
	return nil
}

// modelValues are the values that transactions put. Some of them are integers.
var modelValues = []string{"", "1", string(engine.EncodeInt64(2)), string(engine.EncodeInt64(math.MaxInt64))}
