package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A Hold keeps the week of At and all later ones from being dropped.
type Hold struct {
	Name string
	At   time.Time
}

// holds is a copy in memory of the state under stateHold, updated as batches are decided.
type holds struct {
	mu sync.RWMutex // guards at; not held during I/O
	at map[string]time.Time
}

func holdKey(name string) []byte { return append([]byte{stateHold}, name...) }

func (h Hold) week() weekbucket.Week {
	week, _ := weekbucket.Of(h.At) // checked when the hold was placed
	return week
}

func checkHold(name string, at time.Time) error {
	if strings.TrimSpace(name) == "" || len(name) > limits.HoldNameBytes {
		return &ArgumentError{"hold name", fmt.Sprintf("has %d bytes or is blank: give 1 to %d", len(name), limits.HoldNameBytes)}
	}
	if _, err := weekbucket.Of(at); err != nil || at.IsZero() {
		return &ArgumentError{"hold time", "is zero or outside the years 1 to 9999"}
	}
	return nil
}

// admit returns an error if the writes would exceed the limit of holds.
func (h *holds) admit(writes *txWrites) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	n := len(h.at)
	for _, i := range writes.latest {
		key := writes.list[i].name
		if key[0] != stateHold {
			continue
		}
		_, there := h.at[key[1:]]
		switch put := writes.list[i].StateWrite.Value != nil; {
		case put && !there:
			n++
		case !put && there:
			n--
		}
	}
	if n > limits.Holds && n > len(h.at) {
		return fmt.Errorf("%w: %d holds", ErrLimit, limits.Holds)
	}
	return nil
}

// noteWrite records a write of a batch if it concerns a hold.
func (h *holds) noteWrite(w storage.StateWrite) {
	if w.Key[0] != stateHold {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	name := string(w.Key[1:])
	if w.Value == nil {
		delete(h.at, name)
		return
	}
	if at, err := parseHold(w.Value); err == nil {
		h.at[name] = at
	}
}

func (h *holds) count() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.at)
}

func (h *holds) list() []Hold {
	h.mu.RLock()
	defer h.mu.RUnlock()
	list := make([]Hold, 0, len(h.at))
	for _, name := range slices.Sorted(maps.Keys(h.at)) {
		list = append(list, Hold{name, h.at[name]})
	}
	return list
}

// among returns the existing holds with these names, sorted by name.
func (h *holds) among(names []string) (list []Hold) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, name := range names {
		if at, there := h.at[name]; there {
			list = append(list, Hold{name, at})
		}
	}
	return list
}

// named returns the holds with these names, sorted by name and without repetitions, or an
// ArgumentError if one does not exist.
func (h *holds) named(names []string) ([]Hold, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	list := h.among(names)
	for i, name := range names {
		if i == len(list) || list[i].Name != name {
			return nil, &ArgumentError{"hold name", fmt.Sprintf("%q does not exist: see Engine.Holds", name)}
		}
	}
	return list, nil
}

func (h *holds) lowest() (lowest Hold, some bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for name, at := range h.at {
		if !some || at.Before(lowest.At) || at.Equal(lowest.At) && name < lowest.Name {
			lowest, some = Hold{name, at}, true
		}
	}
	return lowest, some
}
