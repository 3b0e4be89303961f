package storetest

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/hapax-dev/hapax/engine/storage"
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
func (m memSidecars) ReadSidecar(name string, read func(r io.Reader, size int64) error) error {
	if err := m.begin(OpReadSidecar); err != nil {
		return err
	}
	m.disk.mu.Lock()
	content, ok := m.image.sidecars[name] // replaced, never changed
	m.disk.mu.Unlock()
	if !ok {
		return fmt.Errorf("storetest: sidecar %s: %w", name, fs.ErrNotExist)
	}
	return read(bytes.NewReader(content), int64(len(content)))
}

// ReadSidecar returns the content of a small sidecar. It returns an error if the content does not
// have the size that the store reports.
func ReadSidecar(s storage.Store, name string) (content []byte, err error) {
	err = s.ReadSidecar(name, func(r io.Reader, size int64) error {
		if content, err = io.ReadAll(r); err == nil && int64(len(content)) != size {
			err = fmt.Errorf("storetest: sidecar %s has %d bytes, %d were announced", name, len(content), size)
		}
		return err
	})
	return content, err
}
