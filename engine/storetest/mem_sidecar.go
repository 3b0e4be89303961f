package storetest

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// memSidecars writes and reads sidecars.
type memSidecars struct{ *memory }

// WriteSidecar implements [storage.Store].
func (m memSidecars) WriteSidecar(name string, write func(io.Writer) error) error {
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		panic(fmt.Sprintf("storetest: sidecar name %q", name))
	}
	if err := m.beginWrite(OpWriteSidecar); err != nil {
		return err
	}
	var content bytes.Buffer
	if err := write(&content); err != nil {
		return fmt.Errorf("storetest: sidecar %s: %w", name, err)
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if m.failed != nil {
		return m.poisoned(OpWriteSidecar)
	}
	m.image.sidecars[name] = content.Bytes()
	m.written += uint64(content.Len())
	return nil
}

// ReadSidecar implements [storage.Store].
func (m memSidecars) ReadSidecar(name string) ([]byte, error) {
	if err := m.begin(OpReadSidecar); err != nil {
		return nil, err
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	content, ok := m.image.sidecars[name]
	if !ok {
		return nil, fmt.Errorf("storetest: sidecar %s: %w", name, fs.ErrNotExist)
	}
	return append([]byte{}, content...), nil
}
