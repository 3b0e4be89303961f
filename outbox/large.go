package outbox

import (
	"context"
	"errors"
	"slices"

	"github.com/hapax-dev/hapax/internal/entry"
)

// fit asks the broker how large the messages of a topic may be if one may be too large for the
// client, and makes the client again if it must have another limit. It returns the items that can be
// sent: not those of a topic whose limit is unknown because the broker cannot be reached, which have
// failed, and the later ones of their groups.
func (s *session) fit(ctx context.Context, items []*item) ([]*item, error) {
	var topics []string
	for _, i := range items {
		if i.size()+batchExtra > int(s.limits.of(i.Topic)) && !slices.Contains(topics, i.Topic) {
			topics = append(topics, i.Topic)
		}
	}
	if len(topics) == 0 {
		return items, nil
	}
	var read map[string]int32
	var unknown map[string]error
	err := s.during(ctx, s.opt.Batch.Time, func(ctx context.Context) error {
		read, unknown = s.limits.read(ctx, topics)
		return nil
	})
	if errors.Is(err, errLeaseLost) {
		return nil, err
	}
	if s.limits.update(read) {
		s.abandon()
	}
	if s.opt.ExactlyOnce != nil && s.client == nil {
		if err := s.reconnect(ctx); err != nil {
			return nil, err
		}
	}
	blocked := make(map[entry.Group]bool)
	return slices.DeleteFunc(slices.Clone(items), func(i *item) bool {
		if why := unknown[i.Topic]; why != nil && !blocked[i.group] && i.size()+batchExtra > int(s.limits.of(i.Topic)) {
			i.outcome, i.err = failed, why
			blocked[i.group] = true
		}
		return blocked[i.group]
	}), nil
}
