package replica

import (
	"bytes"
	"context"
	"sync"
)

// Memory is a Log in memory, for tests. Its zero value is empty.
type Memory struct {
	mu      sync.Mutex
	topic   [16]byte
	start   int64
	epoch   int32
	records [][]byte
	grown   chan struct{} // closed when a record is appended
}

var _ Log = (*Memory)(nil)

// Topic implements Log.
func (m *Memory) Topic(context.Context) ([16]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.topic, nil
}

// Bounds implements Log.
func (m *Memory) Bounds(context.Context) (start, end int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.start, m.end(), nil
}

func (m *Memory) end() int64 { return m.start + int64(len(m.records)) }

// Append implements Log.
func (m *Memory) Append(ctx context.Context, record []byte) (Ack, error) {
	if err := ctx.Err(); err != nil {
		return Ack{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records = append(m.records, bytes.Clone(record))
	m.wake()
	return Ack{m.end() - 1, m.epoch}, nil
}

// wake wakes those who wait for a change. It is called with mu held.
func (m *Memory) wake() {
	if m.grown != nil {
		close(m.grown)
		m.grown = nil
	}
}

// Read implements Log.
func (m *Memory) Read(ctx context.Context, from, to int64, fn func(offset int64, value []byte) bool) error {
	for at := from; at < to; {
		value, wait, err := m.at(at)
		switch {
		case err != nil:
			return err
		case wait == nil:
			if !fn(at, value) {
				return nil
			}
			at++
			continue
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// at returns a record, or what to wait for if it is the next one.
func (m *Memory) at(offset int64) (value []byte, wait <-chan struct{}, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case offset < m.start || offset > m.end():
		return nil, nil, ErrOutOfRange
	case offset < m.end():
		return m.records[offset-m.start], nil, nil
	}
	if m.grown == nil {
		m.grown = make(chan struct{})
	}
	return nil, m.grown, nil
}

// Truncate removes the records from an offset on, as an unclean election of a leader does: the new
// leader has another epoch.
func (m *Memory) Truncate(from int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records = m.records[:max(min(from, m.end())-m.start, 0)]
	m.epoch++
	m.wake()
}

// Trim removes the records before an offset.
func (m *Memory) Trim(below int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := min(max(below-m.start, 0), int64(len(m.records)))
	m.start, m.records = m.start+n, m.records[n:]
	m.wake()
}

// Recreate deletes the log and creates it again, empty and with another id.
func (m *Memory) Recreate() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.topic, m.start, m.records = newToken(), 0, nil
	m.epoch++
	m.wake()
}
