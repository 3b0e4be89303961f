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

// manifests tracks how much of which MANIFEST is durable, for attest.go. A MANIFEST becomes the
// current one when a marker that names it is durable.
type manifests struct {
	mu      sync.Mutex // guards the fields below
	current position   // of the current MANIFEST: its durable part
	synced  position   // of the MANIFEST that is being written
	marked  string     // the MANIFEST that a marker names which is not durable yet
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

// durable returns how much of the current MANIFEST is durable; its name is empty if nothing
// was written to one since the disk was opened.
func (m *manifests) durable() position {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.current
}
