package topics

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Join returns a client that is the only member of a group, and the committed offsets of the topic,
// by partition.
func Join(ctx context.Context, seeds []string, group, topic string, parts int, opts ...kgo.Opt) (*kgo.Client, []int64, error) {
	next, joined := make([]int64, parts), make(chan struct{})
	var once sync.Once
	client, err := kgo.NewClient(slices.Concat(Reading(seeds), []kgo.Opt{
		kgo.ConsumerGroup(group), kgo.InstanceID(Instance), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.AdjustFetchOffsetsFn(func(_ context.Context, committed map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
			once.Do(func() { // later it has joined again
				for p, o := range committed[topic] {
					next[p] = max(o.EpochOffset().Offset, 0)
				}
				close(joined)
			})
			return committed, nil
		}),
	}, opts)...)
	if err != nil {
		return nil, nil, err
	}
	select {
	case <-joined:
		return client, next, nil
	case <-ctx.Done():
		client.Close()
		return nil, nil, ctx.Err()
	}
}

// Reading returns the options of every client that consumes.
func Reading(seeds []string) []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(seeds...), kgo.FetchIsolationLevel(kgo.ReadCommitted())}
}

// A Clock starts with the first fetched records. It is a hook of the client.
type Clock struct {
	// Started, if not nil, is called when it starts.
	Started func()

	once sync.Once
	at   time.Time
}

// OnFetchBatchRead is part of kgo.HookFetchBatchRead.
func (c *Clock) OnFetchBatchRead(kgo.BrokerMetadata, string, int32, kgo.FetchBatchMetrics) { c.start() }

func (c *Clock) start() {
	c.once.Do(func() {
		if c.at = time.Now(); c.Started != nil {
			c.Started()
		}
	})
}

// Seconds returns the time since the first records arrived, 0 if there were none.
func (c *Clock) Seconds() float64 {
	c.start()
	return time.Since(c.at).Seconds()
}
