package kafkaadapter

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter/changelog"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/tenure"
)

// stores opens the stores of partitions from their changelogs.
type stores struct {
	opt     *Options
	logs    tenure.Logs
	engines *tenure.Engines
}

// begin makes the client of the changelogs, before the member joins the group.
func (s *stores) begin() error {
	o := s.opt
	if s.logs = o.Changelog.logs; s.logs == nil {
		client, err := changelog.New(o.Client, changelog.Options{Replication: o.Changelog.Replication, Telemetry: o.Telemetry})
		if err != nil {
			return err
		}
		s.logs = kafkaLogs{client}
	}
	s.engines = tenure.New(tenure.Options{
		Logs: s.logs, Copies: o.Changelog.Copies, Engine: o.engineOptions, Log: o.Telemetry.Logger, Silence: o.SilenceTimeout,
	})
	return nil
}

// end closes the client, and waits for engines that are being closed, at most until ctx ends.
func (s *stores) end(ctx context.Context) {
	s.logs.Close() // before: it ends appends
	if s.engines.Wait(ctx) != nil {
		s.opt.Telemetry.Logger.Warn("local copies of changelogs are still open: a handler or OnOwned has not returned", "group", s.opt.Group)
	}
}

// An ownStore is the store of one partition. Without a changelog the partition has none of its own, and
// nothing here has an effect.
type ownStore struct {
	stores   *stores // nil: there is none
	progress tenure.Progress
	begun    *tenure.Engine // that of the last call of OnOwned; only the worker uses it
	since    atomic.Int64   // when it began to be restored, Unix nanoseconds; 0 while it is not

	mu      sync.Mutex     // guards the rest
	engine  *tenure.Engine // nil while none is open
	revoked bool
}

func (s *ownStore) exists() bool { return s.stores != nil }

// first is the state in which an assignment begins, and begins again after another owner.
func (s *ownStore) first() state {
	if s.exists() {
		return restoring
	}
	return lookingUp
}

func (s *ownStore) get() *tenure.Engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine
}

// set records the engine that was opened. It is revoked if the partition was given up meanwhile.
func (s *ownStore) set(e *tenure.Engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine = e; s.revoked {
		e.Revoke()
	}
}

// err is why the engine has stopped, nil while it works or none is open.
func (s *ownStore) err() error {
	if !s.exists() {
		return nil
	}
	if e := s.get(); e != nil {
		return e.Engine.Err()
	}
	return nil
}

// hasFailed reports whether an error means that the store must be restored.
func (s *ownStore) hasFailed(err error) bool {
	return s.exists() && (errors.Is(err, engine.ErrStopped) || errors.Is(err, engine.ErrClosed) || errors.Is(err, storage.ErrDamaged) || errors.As(err, new(*storage.DamageError)))
}

// revoke ends the ownership at once and for good: nothing more is appended to the changelog.
func (s *ownStore) revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoked = true
	if s.engine != nil {
		s.engine.Revoke()
	}
}

func (s *ownStore) isRevoked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revoked
}

// begin starts OnOwned for a partition whose store may be used, once for each engine.
func (s *ownStore) begin(ctx context.Context, pos engine.OffsetKey) {
	if e := s.get(); e != nil && e != s.begun {
		s.begun = e
		if f := s.stores.opt.Changelog.OnOwned; f != nil {
			e.Go(ctx, func(ctx context.Context) { f(ctx, pos, e.Engine) })
		}
	}
}

// errOnOwned means that OnOwned has not returned.
var errOnOwned = errors.New("hapax: Changelog.OnOwned has not returned although its context has ended: let it watch its context")

// settle waits for OnOwned, at most until ctx ends.
func (s *ownStore) settle(ctx context.Context) error {
	if e := s.get(); e != nil && e.Settle(ctx) != nil {
		return errOnOwned
	}
	return nil
}

// end closes the engine, in the background.
func (s *ownStore) end() {
	s.mu.Lock()
	e := s.engine
	s.engine = nil
	s.mu.Unlock()
	if e != nil {
		e.Close()
	}
}

// restoringFor is for how long the store has been restored, 0 while it is not.
func (s *ownStore) restoringFor() time.Duration {
	if at := s.since.Load(); at != 0 {
		return max(1, time.Since(time.Unix(0, at)))
	}
	return 0
}
