package kafkaadapter

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
)

// damagedStore cannot read the claims of one id.
type damagedStore struct {
	storage.Store
	id      []byte
	damaged atomic.Bool
}

func (s *damagedStore) Claim(key []byte) ([]byte, bool, error) {
	if b, id, err := storage.ParseKey(key); err == nil && s.damaged.Load() && bytes.Equal(id, s.id) {
		return nil, false, &storage.DamageError{Parts: []storage.Damage{{File: "000001.sst", First: b, Last: b}}, Err: errors.New("flipped")}
	}
	return s.Store.Claim(key)
}

// A record whose claim may be in damage stops its partition until it is repaired, or the policy for Failed decides;
// records before it are handled.
func TestARecordWhoseClaimMayBeInDamageStopsItsPartition(t *testing.T) {
	for name, mode := range map[string]func(r *rig) Mode{
		"transactional": func(r *rig) Mode { return r.work(5, nil) }, "at most once": func(r *rig) Mode { return r.noting() },
	} {
		t.Run(name, func(t *testing.T) {
			store := &damagedStore{id: []byte("bad")}
			r := newRigOn(t, func(t testing.TB) storage.Store {
				store.Store = inMemory(t)
				return store
			}, 1)
			r.send(t, 0, "a", "bad")
			m := r.start(t, mode(r))
			r.untilHandled(t, 2)
			m.stop(t)
			store.damaged.Store(true)
			r.send(t, 0, "b", "bad", "c")
			m = r.start(t, mode(r))
			if e := m.stoppedOne(t); e.Reason != "damaged" || !errors.Is(e, storage.ErrDamaged) {
				t.Errorf("stopped: %v", e)
			}
			r.untilHandled(t, 3)
			m.stop(t)
			m = r.start(t, mode(r), func(o *Options) { o.Routes[0].Policies[Failed] = Process })
			r.untilHandled(t, 5)
			m.counts(t, 1, "unclaimed_total")
			m.stop(t)
			got := r.handled()
			if len(got) != 5 || got[2].id != "b" || got[3].id != "bad" || got[3].verdict != engine.Failed || got[4].id != "c" {
				t.Errorf("handled %+v", got)
			}
		})
	}
}
