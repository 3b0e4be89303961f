package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/hapax-dev/hapax/internal/kgohooks"
)

// The size of a client's record batches. Kafka's topics take 1 MiB unless they are configured
// otherwise, and the client collects small messages up to its limit. So the limit is higher only for
// topics that are known to take more, and never higher than the largest message.
const (
	usualBatch   = 1_000_012 // the client's default
	largestBatch = 4 << 20
	batchExtra   = 1 << 10 // an upper bound of what a batch of one message adds to item.size
)

// batchLimits are the limits of topics that accept larger messages. A client gets them when it is
// made.
type batchLimits struct {
	mu      sync.Mutex
	known   map[string]int32
	refused map[string]bool // topics whose configuration the relay may not read; each was logged

	// read returns max.message.bytes of topics, or segment.bytes if it is smaller. An error says
	// why they are unknown. Tests replace it.
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

// refuse records that the relay may not read the configuration of a topic, and reports whether this
// is the first time.
func (l *batchLimits) refuse(topic string) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused == nil {
		l.refused = make(map[string]bool)
	}
	first = !l.refused[topic]
	l.refused[topic] = true
	return first
}

// readFrom is batchLimits.read. A topic whose configuration the relay may not read has the usual limit.
func (l *batchLimits) readFrom(ctx context.Context, hooks *kgohooks.Owner, opt *Options, topics []string) (read map[string]int32, unknown map[string]error) {
	read, unknown = make(map[string]int32), make(map[string]error)
	fail := func(topic string, err error) {
		if errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) || errors.Is(err, kerr.UnknownTopicOrPartition) {
			if l.refuse(topic) { // the broker is asked again for each large message
				opt.Telemetry.Logger.Warn("outbox: large messages may be rejected, because max.message.bytes of their topic cannot be read: permit DescribeConfigs",
					slog.String("topic", topic), slog.Any("error", err))
			}
			return
		}
		unknown[topic] = fmt.Errorf("hapax: outbox: reading max.message.bytes of %s: %w", topic, err)
	}
	all := func(err error) (map[string]int32, map[string]error) {
		for _, topic := range topics {
			fail(topic, err)
		}
		return read, unknown
	}
	client, err := hooks.NewClient(opt.Client...)
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
