package simulation

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/twmb/franz-go/pkg/kfake"
)

// A store is a storage.Store on a machine whose power can fail: after that it rejects all calls.
type store struct {
	storage.Store
	p        *power
	slow     func() time.Duration // the duration of a sync
	promised *atomic.Uint64       // the newest batch whose wait has returned
	watch    func(*storage.Batch)
}

func (s *store) Apply(b *storage.Batch) (wait func() error, err error) {
	if !s.p.tick(atApply) {
		return nil, errPower
	}
	s.watch(b)
	seq := b.Seq
	durable, err := s.Store.Apply(b)
	if err != nil {
		return nil, err
	}
	if !s.p.tick(atApply) {
		return nil, errPower
	}
	return func() error { return s.sync(seq, durable) }, nil
}

func (s *store) sync(seq uint64, wait func() error) error {
	s.p.tick(atSync)
	time.Sleep(s.slow())
	s.p.tick(atSync)
	err := wait()
	if s.p.off.Load() {
		return errPower
	}
	if err != nil {
		return err
	}
	s.promised.Store(seq)
	if !s.p.tick(atSync) {
		return errPower // the batch is durable, but the caller does not learn it
	}
	return nil
}

// live returns nil while the machine has power.
func (s *store) live() error {
	if s.p.off.Load() {
		return errPower
	}
	return nil
}

func (s *store) Claim(key []byte) (record []byte, found bool, err error) {
	if err := s.live(); err != nil {
		return nil, false, err
	}
	return s.Store.Claim(key)
}

func (s *store) State(key []byte) (value []byte, found bool, err error) {
	if err := s.live(); err != nil {
		return nil, false, err
	}
	return s.Store.State(key)
}

func (s *store) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	if err := s.live(); err != nil {
		return err
	}
	return s.Store.ScanState(span, fn)
}

func (s *store) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	if err := s.live(); err != nil {
		return err
	}
	return s.Store.Scan(ctx, span, started, fn)
}

func (s *store) Journal(from uint64, fn func(seq uint64, entry []byte) error) error {
	if err := s.live(); err != nil {
		return err
	}
	return s.Store.Journal(from, fn)
}

func (s *store) TrimJournal(below uint64) error {
	if err := s.live(); err != nil {
		return err
	}
	return s.Store.TrimJournal(below)
}

func (s *store) WriteSidecar(name string, write func(io.Writer) error) error {
	if err := s.live(); err != nil {
		return err
	}
	return s.Store.WriteSidecar(name, write)
}

func (s *store) ReadSidecar(name string, read func(r io.Reader, size int64) error) error {
	if err := s.live(); err != nil {
		return err
	}
	return s.Store.ReadSidecar(name, read)
}

// A mutation is a rule that is broken, to see whether the simulation detects it.
type mutation struct {
	store  mutant
	broker func(*kfake.Cluster)
}

// A mutant breaks a rule of the protocol between the engine and the disk.
type mutant func(storage.Store) storage.Store

// noSync reports batches as durable before they are: their syncs lag behind.
func noSync(s storage.Store) storage.Store { return &unsynced{Store: s} }

type unsynced struct {
	storage.Store
	behind []func() error // Apply is called by one goroutine at a time
}

func (s *unsynced) Apply(b *storage.Batch) (wait func() error, err error) {
	const lag = 5
	wait, err = s.Store.Apply(b)
	if err != nil {
		return nil, err
	}
	s.behind = append(s.behind, wait)
	if len(s.behind) > lag {
		if err := s.behind[0](); err != nil {
			return nil, err
		}
		s.behind = s.behind[1:]
	}
	return func() error { return nil }, nil
}

// offsetFirst writes the offsets of a batch in a separate batch before it.
func offsetFirst(s storage.Store) storage.Store { return &split{Store: s} }

type split struct {
	storage.Store
	extra uint64 // the number of additional batches
}

// offsetKind is the first byte of the engine's keys for offsets.
const offsetKind = 'o'

func (s *split) Apply(b *storage.Batch) (wait func() error, err error) {
	first := new(storage.Batch)
	rest := &storage.Batch{Claims: b.Claims, Journal: b.Journal}
	for _, w := range b.State {
		if w.Key[0] == offsetKind {
			first.State = append(first.State, w)
		} else {
			rest.State = append(rest.State, w)
		}
	}
	first.Seq, rest.Seq = b.Seq+s.extra, b.Seq+s.extra
	if len(first.State) == 0 {
		return s.Store.Apply(rest)
	}
	s.extra++
	rest.Seq++
	waitFirst, err := s.Store.Apply(first)
	if err != nil {
		return nil, err
	}
	waitRest, err := s.Store.Apply(rest)
	if err != nil {
		return nil, err
	}
	return func() error { return errors.Join(waitFirst(), waitRest()) }, nil
}
