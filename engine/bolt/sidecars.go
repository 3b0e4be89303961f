package bolt

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// sidecars reads and writes the engine's sidecars.
type sidecars struct {
	core      *core
	replacing sync.Mutex // held while a sidecar is written, since two writes of one name would share the temporary file
}

func (s *sidecars) WriteSidecar(name string, write func(io.Writer) error) error {
	if err := checkSidecarName(name); err != nil {
		return err
	}
	if err := s.core.failed(); err != nil {
		return err
	}
	s.replacing.Lock()
	defer s.replacing.Unlock()
	// a sidecar may be about all batches that were applied
	if err := s.core.syncCopy(); err != nil {
		return err
	}
	var callers error
	c := counter{n: &s.core.written}
	err := sidecar.Write(s.core.files(), s.core.dir.Path(), name+sidecarSuffix, func(w io.Writer) error {
		c.Writer = w
		callers = write(&c)
		return callers
	})
	if err == nil {
		return nil
	}
	err = fmt.Errorf("hapax: writing sidecar %s: %w", name, err)
	if callers != nil && c.err == nil || sidecar.NoSpace(err) {
		return err
	}
	return s.core.fail(err)
}

func (s *sidecars) ReadSidecar(name string, read func(r io.Reader, size int64) error) error {
	if err := checkSidecarName(name); err != nil {
		return err
	}
	if err := sidecar.Read(s.core.files(), s.core.path(name+sidecarSuffix), read); err != nil {
		return fmt.Errorf("hapax: reading sidecar %s: %w", name, err)
	}
	return nil
}

func checkSidecarName(name string) error {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("hapax: %q is no name for a sidecar: a-z, 0-9 and '-'", name)
		}
	}
	if name == "" {
		return errors.New("hapax: a sidecar without a name")
	}
	return nil
}

// A counter counts the bytes written through it.
type counter struct {
	io.Writer
	n   *atomic.Uint64
	err error // the first error
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n.Add(uint64(n))
	if c.err == nil {
		c.err = err
	}
	return n, err
}
