package bolt

import (
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

const shortLock = 50 * time.Millisecond

func mustOpen(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return s
}

func mustApply(t testing.TB, s *Store, b *engine.Batch) {
	t.Helper()
	wait, err := s.Apply(b)
	if err == nil {
		err = wait()
	}
	if err != nil {
		t.Fatalf("Apply of batch %d: %v", b.Seq, err)
	}
}
