package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// owned are the client options that the adapter sets: a host that set them too would be overruled in silence.
var owned = []struct {
	name string
	hint string
}{
	{"ConsumerGroup", "set Options.Group"},
	{"ConsumeTopics", "set Options.Topics"},
	{"InstanceID", "set Options.InstanceID"},
	{"ConsumePartitions", "the adapter reads as a member of a group"},
	{"AdjustFetchOffsetsFn", "the store's offset wins"},
	{"OnOffsetsFetched", "the adapter reads the commit's metadata there"},
	{"OnPartitionsAssigned", "the adapter needs it"},
	{"OnPartitionsRevoked", "the adapter drains there"},
	{"OnPartitionsLost", "the adapter fences there"},
	{"TransactionalID", "the adapter's producer is not transactional"},
}

// checkClient refuses client options that cannot work or that the adapter sets itself.
func checkClient(opts []kgo.Opt) error {
	if len(opts) == 0 {
		return fmt.Errorf("%w: Options.Client is empty: give at least kgo.SeedBrokers", ErrOption)
	}
	probe, err := kgo.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("%w: Options.Client: %w", ErrOption, err)
	}
	defer probe.CloseAllowingRebalance()
	for _, o := range owned {
		if isSet(probe.OptValues(o.name)) {
			return fmt.Errorf("%w: Options.Client sets kgo.%s: %s", ErrOption, o.name, o.hint)
		}
	}
	if acks, ok := probe.OptValue(kgo.RequiredAcks).(kgo.Acks); ok && acks != kgo.AllISRAcks() {
		return fmt.Errorf("%w: Options.Client sets kgo.RequiredAcks below all replicas: a dead letter could be lost", ErrOption)
	}
	return nil
}

func (c *Consumer) clientOptions() []kgo.Opt {
	opts := append([]kgo.Opt{kgo.FetchMaxWait(500 * time.Millisecond)}, c.opt.Client...) // a resumed partition waits for it
	opts = append(opts,
		kgo.WithHooks(newClient{c}),
		kgo.ConsumerGroup(c.opt.Group),
		kgo.ConsumeTopics(c.opt.Topics...),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),                          // so that the position passes the markers at a log's end
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), // adjust decides; without it the next line means the log's end
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.OnOffsetsFetched(c.offsetsFetched),
		kgo.AdjustFetchOffsetsFn(c.adjust),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { c.revoked(lost) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { c.lost(lost) }),
	)
	if c.opt.InstanceID != "" {
		opts = append(opts, kgo.InstanceID(c.opt.InstanceID))
	}
	if c.opt.ServerSideAssignment {
		opts = append(opts, kgo.ServerSideBalancer())
	} else {
		opts = append(opts, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	}
	return opts
}

// commit commits the offsets that the store has to Kafka, with the store's identity. An error is logged and the next
// commit tries again. It reports whether Kafka has all of them.
func (c *Consumer) commit(ctx context.Context, all []*partition) bool {
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	var changed []*partition
	for _, p := range all {
		at, ok := p.toCommit()
		if !ok {
			continue
		}
		changed = append(changed, p)
		if offsets[p.pos.Topic] == nil {
			offsets[p.pos.Topic] = make(map[int32]kgo.EpochOffset)
		}
		offsets[p.pos.Topic][p.pos.Partition] = at
	}
	if len(changed) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var failed error
	c.client.CommitOffsetsSync(kgo.PreCommitFnContext(ctx, c.sign), offsets,
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
			failed = err
			if err == nil {
				failed = commitError(resp)
			}
		})
	if failed != nil {
		if ctx.Err() == nil || !errors.Is(failed, context.Canceled) {
			c.opt.Logger.Warn("committing to Kafka failed; the store has the offsets", "group", c.opt.Group, "error", failed)
		}
		return false
	}
	for _, p := range changed {
		p.didCommit(offsets[p.pos.Topic][p.pos.Partition])
	}
	return true
}

// sign puts the store's identity beside each offset.
func (c *Consumer) sign(req *kmsg.OffsetCommitRequest) error {
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			req.Topics[i].Partitions[j].Metadata = &c.self
		}
	}
	return nil
}

func commitError(resp *kmsg.OffsetCommitResponse) error {
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			if err := kerr.ErrorForCode(resp.Topics[i].Partitions[j].ErrorCode); err != nil {
				return fmt.Errorf("%s/%d: %w", resp.Topics[i].Topic, resp.Topics[i].Partitions[j].Partition, err)
			}
		}
	}
	return nil
}

// isSet reports whether an option has a value other than its zero one.
func isSet(values []any) bool {
	for _, value := range values {
		v := reflect.ValueOf(value)
		switch {
		case !v.IsValid():
		case v.Kind() == reflect.Map || v.Kind() == reflect.Slice:
			if v.Len() > 0 {
				return true
			}
		case !v.IsZero():
			return true
		}
	}
	return false
}
