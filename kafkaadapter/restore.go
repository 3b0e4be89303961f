package kafkaadapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/internal/keyspace"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/tenure"
)

// openStore makes this member the owner of a partition's changelog and opens the store.
func openStore(p *partition) (*link, error) {
	s, o := p.c.stores, &p.c.opt
	topic, err := p.c.brokers.ask.Topic(p.ending, p.pos.Topic)
	if err != nil {
		return nil, sourceError{err}
	}
	of := tenure.Partition{Topic: p.pos.Topic, Number: p.pos.Partition, Partitions: int(topic.Partitions), Log: o.Changelog.topic(o.Group, p.pos.Topic), Memory: o.Changelog.Memory / int64(len(o.topics())) / int64(max(1, topic.Partitions))}
	began := time.Now()
	var l *link
	e, err := s.engines.Open(p.ending, of, &p.store.progress, func(ctx context.Context, eng *engine.Engine) (err error) {
		l, err = bindStore(ctx, p, eng)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.store.set(e)
	p.log.Info("the partition's store is restored from its changelog", "took", time.Since(began), "batches", e.Restore.Batches, "claims", e.Restore.Claims)
	return l, nil
}

// sourceError is the error of a look-up of the source topic.
type sourceError struct{ error }

func (e sourceError) Unwrap() error { return e.error }

// bindSource makes sure that the changelog is that of the partition's group and topic.
func bindSource(ctx context.Context, eng *engine.Engine, pos engine.OffsetKey) error {
	key, now := append([]byte(KeyPrefix), keySource), appendText(appendText(nil, pos.Group), pos.Topic)
	return eng.Update(ctx, func(tx *engine.Tx) error {
		was, found, err := tx.Get(key)
		switch {
		case err != nil:
			return err
		case !found:
			return own(tx).Put(key, now)
		case bytes.Equal(was, now):
			return nil
		}
		group, rest, ok := cutText(was)
		topic, rest, ok2 := cutText(rest)
		if !ok || !ok2 || len(rest) > 0 {
			return unknownForm("the source of a changelog", was)
		}
		return fmt.Errorf("%w: it has topic %q of group %q, and is opened for topic %q of group %q", ErrChangelogShared, topic, group, pos.Topic, pos.Group)
	}, engine.Retries(10))
}

// bindStore links the partition to its engine.
func bindStore(ctx context.Context, p *partition, eng *engine.Engine) (*link, error) {
	if err := bindSource(ctx, eng, p.pos); err != nil {
		return nil, err
	}
	if err := checkWindows([]Route{*p.route}, eng); err != nil {
		return nil, err
	}
	driver.Own(eng, driver.Ownership{
		Owner: keyspace.Kafka, Group: p.pos.Group,
		Holds: func() (names []string, complete bool) {
			return []string{p.hold.name}, p.status().state >= publishing && !p.hold.get().IsZero()
		},
		Instead: "the consumer that owns the partition writes it",
	})
	return (&binder{shared: p.c}).bindInTime(ctx, eng)
}

// restore opens the partition's store, after the one before is closed.
func restore(w *worker) state {
	p := w.partition
	closeQueue(p)
	dropTaken(w.state)
	ctx, cancel := context.WithTimeout(p.ending, p.c.opt.SilenceTimeout)
	defer cancel()
	if err := p.store.settle(ctx); err != nil {
		return w.state.stopForNow("handler", err, restoring)
	}
	p.store.end()
	p.store.progress.Reset()
	p.store.since.Store(time.Now().UnixNano())
	l, err := openStore(p)
	p.store.since.Store(0)
	switch {
	case p.isEnding():
		return ended
	case err == nil:
		w.state.lost = false
		p.links.set(l)
		return lookingUp
	}
	p.store.end()
	if errors.Is(err, ErrChangelogShared) { // another try would end the ownership of its owner again
		return w.state.stop("changelog", err)
	}
	if errors.Is(err, replica.ErrChangelogLost) && !w.state.lost { // a new leader may not know the end of its log yet
		w.state.lost = true
		if !p.wait(w.state.retries.NextBackOff()) {
			return ended
		}
		return restoring
	}
	return w.state.stopForNow(reasonOfChangelog(err), err, restoring)
}

// reasonOfChangelog returns the reason for which a store cannot be restored.
func reasonOfChangelog(err error) string {
	switch {
	case errors.As(err, new(sourceError)):
		return reasonOf(err)
	case errors.Is(err, tenure.ErrSilent):
		return "unreachable"
	case errors.Is(err, tenure.ErrInUse):
		return "handler"
	}
	return "changelog"
}
