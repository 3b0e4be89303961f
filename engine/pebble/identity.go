package pebble

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// An identity has the store's identity and the format in the directory.
type identity struct {
	core    *core
	id      storage.Identity
	raising sync.Mutex  // held while the identity is rewritten
	raised  atomic.Bool // the directory has this build's format
}

// raiseFormat raises the format of a store to this build's before the first write that an older
// build would misread.
func (i *identity) raiseFormat() error {
	if i.raised.Load() {
		return nil
	}
	i.raising.Lock()
	defer i.raising.Unlock()
	if err := sidecar.WriteIdentity(sidecarFS{i.core.disk}, i.core.disk.dir, i.core.o.kind(), i.id); err != nil {
		return fmt.Errorf("hapax: raising the format of the store: %w", err)
	}
	if err := i.core.fault.get(); err != nil {
		return err
	}
	i.raised.Store(true)
	return nil
}

func (i *identity) Identity() storage.Identity { return i.id }
