package enginetest

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// A cutStore copies the state that a power failure would leave, before each call that writes. Such
// calls run one at a time.
type cutStore struct {
	storage.Store
	lose func(*storage.Batch) // the part of each batch that the store loses

	mu  sync.Mutex // held during calls that write; guards cut
	cut func(before string)
}

func (s *cutStore) before(call string) (end func()) {
	s.mu.Lock()
	if s.cut != nil {
		s.cut(call)
	}
	return s.mu.Unlock
}

func (s *cutStore) setCut(cut func(before string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = cut
}

func (s *cutStore) Apply(b *storage.Batch) (func() error, error) {
	defer s.before("Apply")()
	if s.lose != nil {
		c := *b
		s.lose(&c)
		b = &c
	}
	wait, err := s.Store.Apply(b)
	if err != nil {
		return nil, err
	}
	return func() error {
		defer s.before("wait")()
		return wait()
	}, nil
}

func (s *cutStore) TrimJournal(below uint64) error {
	defer s.before("TrimJournal")()
	return s.Store.TrimJournal(below)
}

func (s *cutStore) Drop(buckets []storage.Bucket) error {
	defer s.before("Drop")()
	return s.Store.Drop(buckets)
}

func (s *cutStore) Reclaim(ctx context.Context, buckets []storage.Bucket) error {
	defer s.before("Reclaim")()
	return s.Store.Reclaim(ctx, buckets)
}

func (s *cutStore) WriteSidecar(name string, write func(io.Writer) error) error {
	defer s.before("WriteSidecar")()
	return s.Store.WriteSidecar(name, write)
}

// openCut opens a new store and an engine on it, which is closed when the test ends.
func openCut(t *testing.T, h storetest.Harness, o engine.Options) (*engine.Engine, *cutStore, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	inner, err := h.Open(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	s := &cutStore{Store: inner}
	e, err := engine.Open(s, o)
	if err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error("closing:", err)
		}
	})
	return e, s, dir
}
