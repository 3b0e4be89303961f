package bolt

import (
	"context"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// A verifier reads the whole store.
type verifier struct {
	core     *core
	identity *identity
}

func (v *verifier) Verify(ctx context.Context, report func(problem string)) error {
	id, err := sidecar.ReadIdentity(v.core.dir.FS(), v.core.dir.Path(), v.core.o.kind())
	switch {
	case err != nil:
		report(err.Error())
	case id != v.identity.id:
		report(sidecar.IdentityName + " is not what it was when the store was opened")
	}
	for {
		overtaken := false
		err := v.core.view(func(tx *readTx) error {
			newer, older, err := pages.ReadMetas(v.core.file, v.core.pageSize)
			switch {
			case err != nil:
				report(pages.Damaged("%w", err).Error())
				return nil
			case newer.ID == tx.pages.ID:
				return tx.check(ctx, newer.Freelist, tell(report))
			case older != nil && older.ID == tx.pages.ID:
				return tx.check(ctx, older.Freelist, tell(report))
			}
			overtaken = true // two transactions have committed since the view began
			return ctx.Err()
		})
		if !overtaken || err != nil {
			return err
		}
	}
}

func tell(report func(problem string)) func(error) error {
	return func(err error) error {
		report(err.Error())
		return nil
	}
}
