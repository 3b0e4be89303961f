package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/hapax-dev/hapax/internal/entry"
)

// The size of a client's record batches. Kafka's topics take 1 MiB unless they are configured
// otherwise, and the client collects small messages up to its limit. So the limit is higher only for
// topics that are known to take more, and never higher than the largest message.
const (
	usualBatch   = 1_000_012 // the client's default
	largestBatch = 4 << 20
	batchExtra   = 1 << 10 // what a batch of one message has at most, in addition to item.size
)

// batchLimits are the limits of topics that have larger messages. A client gets them when it is made.
type batchLimits struct {
	mu    sync.Mutex
	known map[string]int32

	// read returns max.message.bytes of topics, or segment.bytes if it is smaller, or why they are
	// unknown; tests replace it.
	read func(ctx context.Context, topics []string) (map[string]int32, map[string]error)
}

func (l *batchLimits) of(topic string) int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(usualBatch, min(l.known[topic], largestBatch))
}

// update records what was read, and reports whether clients must be made again.
func (l *batchLimits) update(read map[string]int32) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		l.known = make(map[string]int32)
	}
	for topic, n := range read {
		changed = changed || n > usualBatch && n != l.known[topic]
		l.known[topic] = n
	}
	return changed
}

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

// readLimits is batchLimits.read. A topic whose configuration the relay may not read has the usual limit.
func (s *shared) readLimits(ctx context.Context, topics []string) (read map[string]int32, unknown map[string]error) {
	read, unknown = make(map[string]int32), make(map[string]error)
	fail := func(topic string, err error) {
		if errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) || errors.Is(err, kerr.UnknownTopicOrPartition) {
			s.opt.Telemetry.Logger.Warn("outbox: a large message may be rejected, because max.message.bytes of its topic cannot be read: permit DescribeConfigs",
				slog.String("topic", topic), slog.Any("error", err))
			return
		}
		unknown[topic] = fmt.Errorf("outbox: reading max.message.bytes of %s: %w", topic, err)
	}
	all := func(err error) (map[string]int32, map[string]error) {
		for _, topic := range topics {
			fail(topic, err)
		}
		return read, unknown
	}
	client, err := s.hooks.NewClient(s.opt.Client...)
	if err != nil {
		return all(err)
	}
	defer client.Close()
	configs, err := kadm.NewClient(client).DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return all(err)
	}
	for _, topic := range topics {
		c, err := configs.On(topic, nil)
		if err = errors.Join(err, c.Err); err != nil {
			fail(topic, err)
			continue
		}
		for _, config := range c.Configs {
			n, err := strconv.ParseInt(config.MaybeValue(), 10, 32)
			if (config.Key == "max.message.bytes" || config.Key == "segment.bytes") && err == nil {
				if before, found := read[topic]; !found || int32(n) < before {
					read[topic] = int32(n)
				}
			}
		}
	}
	return read, unknown
}
