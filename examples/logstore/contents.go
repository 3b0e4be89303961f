package logstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hapax-dev/hapax/engine/storage"
)

// contents are the contents of the store. Its byte slices are never changed, so that a reader may
// keep them after it has released the lock.
type contents struct {
	lastSeq uint64
	trimmed uint64 // the journal has no entry below it
	claims  map[storage.Bucket]map[string][]byte
	state   map[string][]byte
	journal map[uint64][]byte
}

func newContents() *contents {
	return &contents{
		claims:  make(map[storage.Bucket]map[string][]byte),
		state:   make(map[string][]byte),
		journal: make(map[uint64][]byte),
	}
}

// replay applies the operations of a frame. It copies the data that it keeps.
func (c *contents) replay(ops []byte) error {
	return eachOp(ops, func(op byte, key, value []byte) error {
		switch op {
		case opPutClaim, opRemoveClaim, opDrop:
			return c.replayClaim(op, key, value)
		case opPutState:
			c.state[string(key)] = append([]byte{}, value...)
		case opRemoveState:
			delete(c.state, string(key))
		case opSeq, opJournal, opTrim:
			return c.replayNumber(op, key, value)
		default:
			return fmt.Errorf("%w: operation %q", storage.ErrDamaged, op)
		}
		return nil
	})
}

func (c *contents) replayClaim(op byte, key, record []byte) error {
	bucket, _, err := storage.SplitKey(key)
	if err != nil {
		return err
	}
	switch op {
	case opDrop:
		delete(c.claims, bucket)
	case opRemoveClaim:
		delete(c.claims[bucket], string(key))
		if len(c.claims[bucket]) == 0 {
			delete(c.claims, bucket)
		}
	default:
		if c.claims[bucket] == nil {
			c.claims[bucket] = make(map[string][]byte)
		}
		c.claims[bucket][string(key)] = append([]byte{}, record...)
	}
	return nil
}

func (c *contents) replayNumber(op byte, key, value []byte) error {
	if len(key) != 8 {
		return fmt.Errorf("%w: number %x", storage.ErrDamaged, key)
	}
	n := binary.BigEndian.Uint64(key)
	switch op {
	case opSeq:
		if c.lastSeq != 0 && n != c.lastSeq+1 {
			return fmt.Errorf("%w: batch %d follows batch %d", storage.ErrDamaged, n, c.lastSeq)
		}
		c.lastSeq = n
	case opJournal:
		c.journal[n] = append([]byte{}, value...)
	case opTrim:
		c.trimmed = max(c.trimmed, n)
		maps.DeleteFunc(c.journal, func(seq uint64, _ []byte) bool { return seq < c.trimmed })
	}
	return nil
}

// frames calls fn with frames that contain all the contents: they begin a new log.
func (c *contents) frames(fn func(frame) error) error {
	f := newFrame(0)
	if c.lastSeq > 0 {
		f.add(opSeq, number(c.lastSeq), nil)
	}
	f.add(opTrim, number(c.trimmed), nil)
	for seq, entry := range c.journal {
		f.add(opJournal, number(seq), entry)
	}
	for key, value := range c.state {
		f.add(opPutState, []byte(key), value)
	}
	if err := fn(f); err != nil {
		return err
	}
	for _, claims := range c.claims {
		f := newFrame(0)
		for key, record := range claims {
			f.add(opPutClaim, []byte(key), record)
		}
		if err := fn(f); err != nil {
			return err
		}
	}
	return nil
}

// clone copies the maps. The slices are shared.
func (c *contents) clone() *contents {
	own := *c
	own.state, own.journal = maps.Clone(c.state), maps.Clone(c.journal)
	own.claims = make(map[storage.Bucket]map[string][]byte, len(c.claims))
	for bucket, claims := range c.claims {
		own.claims[bucket] = maps.Clone(claims)
	}
	return &own
}

// size returns the approximate length of a log of the contents.
func (c *contents) size() (n int64) {
	for _, claims := range c.claims {
		n += sizeOf(claims)
	}
	n += sizeOf(c.state)
	for _, entry := range c.journal {
		n += int64(len(entry)) + 16
	}
	return n
}

func sizeOf(entries map[string][]byte) (n int64) {
	for key, value := range entries {
		n += int64(len(key)+len(value)) + 4
	}
	return n
}

// buckets returns the buckets with claims, in key order.
func (c *contents) buckets() []storage.Bucket {
	return slices.SortedFunc(maps.Keys(c.claims), func(a, b storage.Bucket) int {
		return bytes.Compare(a.AppendPrefix(nil), b.AppendPrefix(nil))
	})
}

type entry struct {
	key   string
	value []byte
}

// inSpan appends the entries whose keys are in the span, in no particular order.
func inSpan(dst []entry, entries map[string][]byte, span storage.Span) []entry {
	for key, value := range entries {
		if span.Holds([]byte(key)) {
			dst = append(dst, entry{key, value})
		}
	}
	return dst
}

func sortByKey(entries []entry) {
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
}
