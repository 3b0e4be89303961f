package engine

import (
	"fmt"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// A KeyValue is a key and its value. The caller owns both.
type KeyValue struct {
	Key   []byte
	Value []byte
}

// A Range selects, in the order of their bytes, the first Limit keys that begin with Prefix and are
// greater than After. The zero Range selects all keys. To continue an iteration, set After to the
// last key it has returned.
type Range struct {
	Prefix []byte
	After  []byte
	Limit  int // 0 means no limit; no more keys are read from the store
}

func (r Range) check() error {
	if r.Limit < 0 {
		return &ArgumentError{"range", fmt.Sprintf("has a limit of %d", r.Limit)}
	}
	if n := max(len(r.Prefix), len(r.After)); n > limits.KeyBytes {
		return &ArgumentError{"range", fmt.Sprintf("has a prefix or first key of %d bytes, keys have at most %d", n, limits.KeyBytes)}
	}
	return nil
}

// span returns the span of the range among the state keys that begin with space.
func (r Range) span(space []byte) storage.Span {
	s := storage.Span{Prefix: join(space, r.Prefix)}
	if len(r.After) > 0 {
		s.From = append(join(space, r.After), 0)
	}
	return s
}

func join(space, key []byte) []byte {
	return append(append(make([]byte, 0, len(space)+len(key)+1), space...), key...)
}

// afterKey returns the least key that is greater than key.
func afterKey(key []byte) []byte {
	after := make([]byte, len(key)+1) // no larger than needed, because transactions keep the ends of their scans
	copy(after, key)
	return after
}

var applicationSpace = []byte{stateHost}

func checkHostKey(key []byte) error {
	if len(key) == 0 || len(key) > limits.KeyBytes {
		return &ArgumentError{"application key", fmt.Sprintf("has %d bytes: give 1 to %d", len(key), limits.KeyBytes)}
	}
	return nil
}

// spacePrefix returns the prefix of the state keys of a space: its kind, its name and a zero byte,
// which no name contains. The keys of a reserved space are application keys.
func spacePrefix(space keyspace.Space) []byte {
	if space.Name() == "" {
		panic("hapax: the zero keyspace.Space is no space: make one with keyspace.New")
	}
	if space.IsReserved() {
		return applicationSpace
	}
	return append(append([]byte{stateSpace}, space.Name()...), 0)
}
