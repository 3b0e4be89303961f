package storetest

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/hapax-dev/hapax/engine/storage"
)

// given has the data that a store was given.
type given struct {
	told    history
	entries map[uint64][]byte // journal entries
	trimmed uint64            // the argument of TrimJournal
	hidden  uint64            // the argument of TrimJournal since the store was opened
	gone    map[storage.Bucket]bool
}

func newGiven() given {
	return given{told: newHistory(newContents()), entries: map[uint64][]byte{}, gone: map[storage.Bucket]bool{}}
}

// compare describes how the contents of s differ from want, "" if they are equal.
func (g *given) compare(s storage.Store, want *contents) string {
	got, err := readAll(s)
	if err != nil {
		return err.Error()
	}
	var d differences
	d.maps("claim", got.claims, want.claims)
	d.maps("state", got.state, want.state)
	for _, b := range sortedBuckets(want.buckets) {
		if got.buckets[b] == 0 {
			d.add("Buckets misses %v", b)
		}
	}
	for _, b := range sortedBuckets(got.buckets) {
		if want.buckets[b] == 0 {
			d.add("Buckets has %v, which is empty", b)
		}
	}
	for seq := uint64(1); seq <= want.lastSeq; seq++ {
		entry, found := got.journal[seq]
		switch {
		case !found && seq >= g.trimmed:
			d.add("journal entry %d is missing", seq)
		case found && seq < g.hidden:
			d.add("journal entry %d still exists after TrimJournal(%d)", seq, g.hidden)
		case found && !bytes.Equal(entry, g.entries[seq]):
			d.add("journal entry %d is %q, want %q", seq, short(entry), short(g.entries[seq]))
		}
		delete(got.journal, seq)
	}
	for seq := range got.journal {
		d.add("journal entry %d belongs to no batch", seq)
	}
	d.points(s, got)
	return d.String()
}

// readAll reads the whole store, and checks the order.
func readAll(s storage.Store) (*contents, error) {
	c := newContents()
	var lastKey []byte
	var problem error
	inOrder := func(what string, key []byte) {
		if lastKey != nil && bytes.Compare(lastKey, key) >= 0 && problem == nil {
			problem = fmt.Errorf("%s: key %x comes after %x", what, key, lastKey)
		}
		lastKey = append([]byte{}, key...)
	}
	begun := 0
	err := s.Scan(context.Background(), storage.Span{}, func() { begun++ }, func(key, record []byte) error {
		inOrder("Scan", key)
		if begun != 1 {
			problem = fmt.Errorf("Scan has called started %d times before the first claim", begun)
		}
		c.claims[string(key)] = append([]byte{}, record...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("Scan: %w", err)
	}
	if begun != 1 && problem == nil {
		problem = fmt.Errorf("Scan has called started %d times", begun)
	}
	lastKey = nil
	err = s.ScanState(storage.Span{}, func(key, value []byte) error {
		inOrder("ScanState", key)
		c.state[string(key)] = append([]byte{}, value...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ScanState: %w", err)
	}
	lastKey = nil
	err = s.Buckets(func(b storage.Bucket) error {
		inOrder("Buckets", b.AppendPrefix(nil))
		c.buckets[b]++
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("Buckets: %w", err)
	}
	lastSeq := uint64(0)
	err = s.Journal(0, func(seq uint64, entry []byte) error {
		if seq <= lastSeq {
			problem = fmt.Errorf("Journal: entry %d comes after %d", seq, lastSeq)
		}
		lastSeq = seq
		c.journal[seq] = append([]byte{}, entry...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("Journal: %w", err)
	}
	return c, problem
}

// differences collects the first few differences.
type differences struct {
	lines []string
	more  int
}

func (d *differences) add(format string, args ...any) {
	if len(d.lines) == 5 {
		d.more++
		return
	}
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *differences) maps(what string, got, want map[string][]byte) {
	for _, k := range sortedKeys(want, "") {
		if v, found := got[k]; !found {
			d.add("%s %q is missing", what, short(k))
		} else if !bytes.Equal(v, want[k]) {
			d.add("%s %q is %q, want %q", what, short(k), short(v), short(want[k]))
		}
	}
	for _, k := range sortedKeys(got, "") {
		if _, found := want[k]; !found {
			d.add("%s %q = %q should not be there", what, short(k), short(got[k]))
		}
	}
}

// points checks that single reads agree with the scans: for some 50 keys of each kind, for keys
// that are a byte longer or shorter, and for keys of claims used as keys of state.
func (d *differences) points(s storage.Store, all *contents) {
	claims, state := sortedKeys(all.claims, ""), sortedKeys(all.state, "")
	for i := 0; i < len(claims); i += 1 + len(claims)/50 {
		k := claims[i]
		d.point("Claim", s.Claim, k, all.claims)
		d.point("Claim", s.Claim, k+"\x00", all.claims)
		d.point("Claim", s.Claim, k[:len(k)-1], all.claims)
		d.point("State", s.State, k, all.state)
	}
	for i := 0; i < len(state); i += 1 + len(state)/50 {
		k := state[i]
		d.point("State", s.State, k, all.state)
		d.point("State", s.State, k+"\x00", all.state)
		if len(k) > 1 {
			d.point("State", s.State, k[:len(k)-1], all.state)
		}
	}
}

func (d *differences) point(what string, get func([]byte) ([]byte, bool, error), key string, all map[string][]byte) {
	want, exists := all[key]
	got, found, err := get([]byte(key))
	switch {
	case err != nil:
		d.add("%s(%q): %v", what, short(key), err)
	case found != exists || !bytes.Equal(got, want):
		d.add("%s(%q) is %q, %v; a scan shows %q, %v", what, short(key), short(got), found, short(want), exists)
	}
}

func (d *differences) String() string {
	s := strings.Join(d.lines, "; ")
	if d.more > 0 {
		s += fmt.Sprintf("; and %d more differences", d.more)
	}
	return s
}

func short[T string | []byte](s T) string {
	if len(s) > 80 {
		return fmt.Sprintf("%s... (%d bytes)", string(s[:40]), len(s))
	}
	return string(s)
}
