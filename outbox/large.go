package outbox

import (
	"context"
	"errors"
	"slices"

	"github.com/hapax-dev/hapax/internal/entry"
)

// fit makes sure that the client can send the items. If one may be too large for the client, fit
// asks the broker for the limit of its topic, and makes the client again if it needs a higher
// limit. It returns the items that can be sent. If the broker cannot be reached and a limit is
// unknown, the items of that topic have failed, and they and the later ones of their groups are
// left out. If again is true, the queue was read again and the batch is void, because some of its
// items may have been published.
func (s *session) fit(ctx context.Context, items []*item) (fitting []*item, again bool, err error) {
	var topics []string
	for _, i := range items {
		if i.size()+batchExtra > int(s.connection.shared.limits.of(i.Entry.Topic)) && !slices.Contains(topics, i.Entry.Topic) {
			topics = append(topics, i.Entry.Topic)
		}
	}
	if len(topics) == 0 {
		return items, false, nil
	}
	var read map[string]int32
	var unknown map[string]error
	err = s.connection.during(ctx, s.connection.shared.opt.Batch.Time, func(ctx context.Context) error {
		read, unknown = s.connection.shared.limits.read(ctx, topics)
		return nil
	})
	if errors.Is(err, errLeaseLost) {
		return nil, false, err
	}
	if s.connection.shared.limits.update(read) {
		s.connection.abandon()
	}
	if s.connection.shared.opt.ExactlyOnce != nil && s.connection.client == nil {
		if again, err := s.reconnect(ctx); err != nil || again {
			return nil, again, err
		}
	}
	blocked := make(map[entry.Group]bool)
	return slices.DeleteFunc(slices.Clone(items), func(i *item) bool {
		if why := unknown[i.Entry.Topic]; why != nil && !blocked[i.group] && i.size()+batchExtra > int(s.connection.shared.limits.of(i.Entry.Topic)) {
			i.outcome, i.err = failed, why
			blocked[i.group] = true
		}
		return blocked[i.group]
	}), false, nil
}
