package bolt

import (
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// An identity has the store's identity and the format in the directory.
type identity struct {
	core   *core
	id     storage.Identity
	raised bool // the directory has this build's format; guarded by writing
}

// raiseFormat raises the format of a store to this build's before the first transaction that an
// older build might misread.
func (i *identity) raiseFormat() error {
	if i.raised {
		return nil
	}
	if err := sidecar.WriteIdentity(i.core.files(), i.core.dir.Path(), i.core.o.kind(), i.id); err != nil {
		return fmt.Errorf("raising the format of the store: %w", err)
	}
	i.raised = true
	return nil
}

func (i *identity) Identity() storage.Identity { return i.id }
