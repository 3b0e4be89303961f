package pebble

import (
	"strings"
	"sync"
)

// A position is a durable length of a file.
type position struct {
	name string
	size uint64
}

// manifests tracks for attestations how much of the current MANIFEST is durable. A MANIFEST becomes
// the current one when a marker that names it is durable.
type manifests struct {
	mu      sync.Mutex // guards the fields below
	current position   // durable part of the current MANIFEST
	synced  position   // durable part of the MANIFEST that is being written
	marked  string     // MANIFEST in a marker that is not durable yet
}

// noteCreated is called with the name of each file that is created in the directory.
func (m *manifests) noteCreated(name string) {
	if i := strings.LastIndexByte(name, '.'); strings.HasPrefix(name, markerPrefix) && i >= 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.marked = name[i+1:]
	}
}

func (m *manifests) noteSynced(p position) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.synced = p
	if m.current.name == p.name {
		m.current = p
	}
}

func (m *manifests) pendingMark() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.marked
}

func (m *manifests) noteMarked(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name != "" && m.synced.name == name {
		m.current = m.synced
	}
}

// durable returns the durable part of the current MANIFEST. The name is empty if no MANIFEST was
// written since the failStopFS was opened.
func (m *manifests) durable() position {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.current
}
