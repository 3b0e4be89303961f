package pebble

import (
	"fmt"
	"io"

	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// sidecars reads and writes the engine's sidecars.
type sidecars struct {
	core     *core
	attester *attester
}

func sidecarName(name string) (string, error) {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return "", fmt.Errorf("hapax: sidecar name %q: use a-z, 0-9 and '-'", name)
		}
	}
	if name == "" {
		return "", fmt.Errorf("hapax: sidecar without a name")
	}
	return sidecarPrefix + name, nil
}

func (s *sidecars) WriteSidecar(name string, write func(io.Writer) error) error {
	file, err := sidecarName(name)
	if err != nil {
		return err
	}
	s.core.maintenance.Lock()
	defer s.core.maintenance.Unlock()
	if err := s.core.fault.get(); err != nil {
		return err
	}
	// a sidecar may be about all batches that were applied
	if err := s.attester.syncCopy(s.attester.unsynced.Load()); err != nil {
		return err
	}
	if err := sidecar.Write(sidecarFS{s.core.disk}, s.core.disk.dir, file, write); err != nil {
		return fmt.Errorf("hapax: writing sidecar %q: %w", name, err)
	}
	return s.core.fault.get()
}

func (s *sidecars) ReadSidecar(name string, read func(r io.Reader, size int64) error) error {
	file, err := sidecarName(name)
	if err != nil {
		return err
	}
	if err := sidecar.Read(sidecarFS{s.core.disk}, s.core.disk.path(file), read); err != nil {
		return fmt.Errorf("hapax: reading sidecar %q: %w", name, err)
	}
	return nil
}
