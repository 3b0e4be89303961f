package watermilldedup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
)

// A Repository is the ExpiringKeyRepository of Watermill's middleware.Deduplicator. Its keys are
// durable before they are reported as new, and each expires exactly when its window ends. It is
// safe for concurrent use.
//
// The Deduplicator calls it before the handler, and the repository does not learn of a failure: a
// message whose handler fails is a duplicate when it is delivered again, and is lost. The
// middleware of [New] does not lose it.
type Repository struct {
	eng    *engine.Engine
	scope  string
	window time.Duration
}

var _ middleware.ExpiringKeyRepository = (*Repository)(nil)

// NewRepository returns a repository of keys in a scope, each of which lasts for window: at least a
// millisecond, at most the engine's retention. Repositories with one scope share their keys. A
// scope must not be shared with a middleware of [New].
func NewRepository(eng *engine.Engine, scope string, window time.Duration) (*Repository, error) {
	switch {
	case eng == nil:
		return nil, errors.New("hapax: watermilldedup: the engine is nil: open one with engine.Open, and check its error")
	case scope == "":
		return nil, errors.New("hapax: watermilldedup: the scope is empty: name the consumer")
	case window < time.Millisecond || window > limits.ArrivalWindow:
		return nil, fmt.Errorf("hapax: watermilldedup: the window is %v: give 1ms to %v", window, limits.ArrivalWindow)
	}
	return &Repository{eng, scope, window}, nil
}

// IsDuplicate claims the key, and reports whether it was claimed before within the window. When it
// returns false, the claim is durable; of concurrent callers, one gets false. An error does not say
// whether the key is claimed: the message must not be acknowledged. Of ctx only the deadline counts:
// the context of a message that was acknowledged early has ended, and nothing delivers it again.
func (r *Repository) IsDuplicate(ctx context.Context, key string) (bool, error) {
	ctx, cancel := detach(ctx)
	defer cancel()
	res, err := r.eng.TryClaim(ctx, engine.Event{
		Scope: r.scope, ID: []byte(key), Window: r.window, Origin: engine.Origin{Topic: r.scope},
	})
	switch {
	case err != nil:
		return false, fmt.Errorf("hapax: watermilldedup: the key cannot be judged: %w", err)
	case res.Verdict == engine.Claimed:
		return false, nil
	case res.Verdict == engine.Duplicate:
		return true, nil
	}
	return false, fmt.Errorf("hapax: watermilldedup: the key is %v: another caller holds it, deliver the message again later", res.Verdict)
}
