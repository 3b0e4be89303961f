package replica_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// A log whose records were all removed, by retention or an administrator, is not a new one: all claims
// would be forgotten. A copy that has them stays.
func TestLogWithoutItsRecordsIsNotANewOne(t *testing.T) {
	log, copies := written(t)
	log.Trim(1 << 20)
	refused(t, log, place(), replica.ErrChangelogDamaged)
	refused(t, log, copies, replica.ErrChangelogDamaged)
	if copies.gone > 0 {
		t.Error("the copy was removed, which had the only claims")
	}
	if n := len(records(log)); n > 0 {
		t.Errorf("%d records were appended", n)
	}
}

// A log that has lost all records is a loss, and known at once.
func TestLogThatIsEmptyAgainIsALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, copies := written(t)
		log.Truncate(0)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		s, err := replica.Open(ctx, log, copies, quiet())
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, replica.ErrChangelogLost) || copies.gone > 0 {
			t.Errorf("%v, removed %d times", err, copies.gone)
		}
	})
}

// damagedCopies are on a disk that damages each copy.
type damagedCopies struct{ *memCopies }

func (d *damagedCopies) Create(id storage.Identity) (storage.Store, error) {
	if d.gone > 9 {
		return nil, errors.New("it goes on forever")
	}
	s, err := d.memCopies.Create(id)
	if err == nil {
		d.last.FailAt(storetest.OpApply, 1, storage.ErrDamaged)
	}
	return s, err
}

// A copy that is damaged again while it is restored is not restored forever.
func TestCopyThatIsDamagedAgainEndsTheRestore(t *testing.T) {
	log, _ := written(t)
	copies := &damagedCopies{place()}
	refused(t, log, copies, storage.ErrDamaged)
	if copies.gone > 2 {
		t.Errorf("it was removed %d times", copies.gone)
	}
}
