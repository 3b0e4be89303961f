package kafkaadapter

import (
	"context"
	"fmt"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/keyspace"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// A binder links the consumer to its store, at the start and, with Options.ReopenStore, after the
// store has failed.
type binder struct {
	shared *shared
	parts  *assignments

	disown func() // ends the ownership in the last engine; nil before the first
}

// own makes the offsets of the group, and the holds of assigned partitions, the consumer's own.
func (b *binder) own(eng *engine.Engine) {
	b.release()
	b.disown = driver.Own(eng, driver.Ownership{
		Owner:   keyspace.Kafka,
		Group:   b.shared.opt.Group,
		Holds:   b.holds,
		Instead: "a running consumer writes it; end the consumers of the group first",
	})
}

// holds returns the names of the holds of assigned partitions, and reports whether the consumer is a
// member of its group and has taken all of them over.
func (b *binder) holds() (names []string, complete bool) {
	complete = b.shared.health.joined.Load() && b.shared.health.awaited.Load() == 0
	for _, p := range b.parts.all() {
		names = append(names, p.hold.name)
		complete = complete && p.status().state >= publishing && !p.hold.get().IsZero()
	}
	return names, complete
}

// release ends the ownership, when nothing is consumed any more.
func (b *binder) release() {
	if b.disown != nil {
		b.disown()
	}
}

// connect links the consumer to its store before it reads anything. With a changelog, the partitions
// have stores of their own.
func (b *binder) connect(ctx context.Context) error {
	if b.shared.stores != nil {
		return b.shared.stores.begin()
	}
	l, _ := b.shared.links.get()
	var eng *engine.Engine
	var err error
	if l != nil {
		eng = l.eng
	} else if eng, err = b.shared.callReopenStore(ctx); err != nil {
		if ctx.Err() == nil {
			b.shared.loseStore(nil, err)
		}
		return ctx.Err()
	}
	next, err := b.bindInTime(ctx, eng)
	switch {
	case err == nil:
		b.own(eng)
		b.shared.links.set(next)
		return nil
	case ctx.Err() == nil && b.shared.goesOn(l, err):
		return nil
	}
	return err
}

// bindInTime makes a link. It does not wait for a store that hangs once Run is asked to end.
func (b *binder) bindInTime(ctx context.Context, eng *engine.Engine) (*link, error) {
	type result struct {
		l   *link
		err error
	}
	bound := make(chan result, 1)
	go func() {
		l, err := b.bind(ctx, eng)
		bound <- result{l, err}
	}()
	select {
	case r := <-bound:
		return r.l, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// bind makes sure that no other group claims in the scopes of the routes, unless SharedScope allows
// it, and gets the store's secrets.
func (b *binder) bind(ctx context.Context, eng *engine.Engine) (*link, error) {
	var secrets deadletter.Secrets
	err := eng.Update(ctx, func(tx *engine.Tx) (err error) {
		if secrets, err = deadletter.BindSecrets(tx); err != nil {
			return err
		}
		if err := b.bindPinned(tx); err != nil {
			return err
		}
		for i := range b.shared.opt.Routes {
			if err := b.bindScope(tx, &b.shared.opt.Routes[i]); err != nil {
				return err
			}
		}
		return nil
	}, engine.Retries(10))
	if err != nil {
		return nil, err
	}
	return newLink(eng, secrets), nil
}

func (b *binder) bindScope(tx *engine.Tx, r *Route) error {
	key := scopeKey(r.Scope)
	group, found, err := tx.Get(key)
	switch {
	case err != nil:
		return err
	case !found:
		return own(tx).Put(key, []byte(b.shared.opt.Group))
	case string(group) != b.shared.opt.Group && !r.SharedScope:
		return fmt.Errorf("%w: scope %q belongs to group %q", ErrScopeShared, r.Scope, group)
	}
	return nil
}

// bindPinned makes sure that the store is used with the same part of the partitions as before.
func (b *binder) bindPinned(tx *engine.Tx) error {
	key := appendText(append([]byte(KeyPrefix), keyPinned), b.shared.opt.Group)
	old, found, err := tx.Get(key)
	if err != nil {
		return err
	}
	now := b.shared.opt.Membership.pinned
	if !found {
		if !b.shared.opt.Membership.isPinned() {
			return nil
		}
		return own(tx).Put(key, now.encode())
	}
	was, err := parsePinned(old)
	if err == nil && was != now {
		err = fmt.Errorf("%w (ordinal %d of %d before, %d of %d now)", ErrPinnedChanged, was.index, was.count, now.index, now.count)
	}
	return err
}
