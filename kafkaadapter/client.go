package kafkaadapter

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/kgohooks"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// owned are the client options that the adapter sets, or that cannot work with it. An application's
// value would be overridden silently.
var owned = []struct {
	name string
	hint string
}{
	{"ConsumerGroup", "set Options.Group"},
	{"ConsumeTopics", "set Options.Routes"},
	{"ConsumeRegex", "name each topic in Route.Topics: a pattern could match the consumer's own dead-letter topics, whose records would become dead letters again and again"},
	{"InstanceID", "set Options.Membership to Static"},
	{"ConsumePartitions", "set Options.Membership to Pinned for a fixed part of the partitions"},
	{"AdjustFetchOffsetsFn", "the store's offset wins"},
	{"OnOffsetsFetched", "the adapter reads the commit's metadata there"},
	{"OnPartitionsAssigned", "set Options.OnRebalance"},
	{"OnPartitionsRevoked", "the adapter drains there; set Options.OnRebalance"},
	{"OnPartitionsLost", "the adapter fences there; set Options.OnRebalance"},
	{"TransactionalID", "the adapter's producer is not transactional"},
	{"ManualFlushing", "dead letters would never be sent; remove it"},
	{"ConsumeResetOffset", "set Options.Recovery for ErrBelowLog and ErrAboveLog"},
	{"ConsumeStartOffset", "set Route.Start"}, // kgo.ConsumeResetOffset sets it, too
	{"ServerSideBalancer", "set Options.Membership to one that is ServerSide"},
	{"Balancers", "it has an effect only if Options.Membership is ServerSide; the classic protocol is cooperative-sticky"},
	{"Rack", "the adapter compares the fetched records with the leader's log, from which that of a follower may differ; remove it"},
	{"FetchIsolationLevel", "the adapter reads committed records only; remove it"},
	{"ProducerLinger", "a partition waits until its dead letters are sent; remove it"},
	{"MaxBufferedBytes", "the client would reject larger dead letters; the memory of fetched records is bounded by Options.MaxBufferedBytes"},
	{"MaxDecompressBatchBytes", "set Options.MaxBufferedBytes"},
	{"WithPools", "handlers get copies of the fetched records, and Recycle of a copy panics; remove it"},
	{"DefaultProduceTopicAlways", "dead letters would be sent to that topic; remove it"},
}

// checkClient rejects client options that cannot work or that the adapter sets itself.
func checkClient(opts []kgo.Opt, m *Membership) error {
	if len(opts) == 0 {
		return fmt.Errorf("%w: Options.Client is empty: set at least kgo.SeedBrokers", ErrOption)
	}
	probe, err := kgohooks.Probe(opts...)
	if err != nil {
		return fmt.Errorf("%w: Options.Client: %w", ErrOption, err)
	}
	defer probe.CloseAllowingRebalance()
	unset, err := kgo.NewClient()
	if err != nil {
		return fmt.Errorf("hapax: making a Kafka client: %w", err)
	}
	defer unset.CloseAllowingRebalance()
	for _, o := range owned {
		if o.name == "Balancers" && m.serverSide {
			continue
		}
		if !reflect.DeepEqual(probe.OptValues(o.name), unset.OptValues(o.name)) {
			return fmt.Errorf("%w: Options.Client sets kgo.%s: %s", ErrOption, o.name, o.hint)
		}
	}
	if reflect.TypeOf(probe.OptValue(kgo.WithDecompressor)) != reflect.TypeOf(unset.OptValue(kgo.WithDecompressor)) {
		return fmt.Errorf("%w: Options.Client sets kgo.WithDecompressor: the adapter bounds what is decompressed; remove it", ErrOption)
	}
	if acks, ok := probe.OptValue(kgo.RequiredAcks).(kgo.Acks); ok && acks != kgo.AllISRAcks() {
		return fmt.Errorf("%w: Options.Client sets kgo.RequiredAcks to less than all replicas, so a dead letter could be lost: remove it", ErrOption)
	}
	return nil
}

// clientContext returns a context for the client that ends with the one in the application's options,
// if there is one.
func clientContext(opts []kgo.Opt) (context.Context, context.CancelFunc, error) {
	probe, err := kgohooks.Probe(opts...)
	if err != nil {
		return nil, nil, fmt.Errorf("hapax: making the Kafka client: %w", err)
	}
	defer probe.CloseAllowingRebalance()
	from, ok := probe.OptValue(kgo.WithContext).(context.Context)
	if !ok {
		from = context.Background()
	}
	ctx, cancel := context.WithCancel(from)
	return ctx, cancel, nil
}

func (c *Consumer) clientOptions() []kgo.Opt {
	bytes := int32(min(c.shared.opt.MaxBufferedBytes/2/fetches, maxFetchBytes))
	opts := append([]kgo.Opt{
		kgo.FetchMaxWait(500 * time.Millisecond), // a resumed partition waits this long
		kgo.MaxConcurrentFetches(fetches),
		kgo.FetchMaxBytes(bytes),
		kgo.FetchMaxPartitionBytes(min(bytes, 1<<20)),
		kgo.ProducerBatchCompression(kgo.ZstdCompression(), kgo.SnappyCompression(), kgo.NoCompression()), // of dead letters
	}, c.shared.opt.Client...)
	opts = append(opts,
		kgo.WithHooks(newClient{c.shared}, c.shared.memory, &c.shared.reach),
		kgo.WithDecompressor(c.shared.decompressor),
		kgo.ProducerBatchMaxBytesFn(c.shared.batchBytes),
		kgo.ProducerLinger(0),   // letters are produced together, and the partition waits for them
		kgo.MaxBufferedBytes(0), // no limit: the store bounds the size of a dead letter, and the client would reject a larger one
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// Without this option, the client does not fail a dead letter whose outcome is unknown when
		// its context ends, and retries without a pause. Dead letters are published at least once
		// in any case.
		kgo.AllowIdempotentProduceCancellation(),
		kgo.KeepControlRecords(),                          // so that the position passes the markers at a log's end
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), // adjust decides; otherwise the default is the log's end
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
	)
	if c.shared.opt.Membership.isPinned() {
		return opts
	}
	opts = append(opts,
		kgo.ConsumerGroup(c.shared.opt.Group),
		kgo.ConsumeTopics(c.shared.opt.topics()...),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnOffsetsFetched(c.assign.offsetsFetched),
		kgo.AdjustFetchOffsetsFn(c.assign.adjust),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) {
			c.assign.await(added)
			c.assign.assigned(added)
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
			c.assign.noLonger(lost)
			c.assign.revoked(lost)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
			c.assign.noLonger(lost)
			c.assign.lost(lost)
		}),
	)
	if c.shared.opt.Membership.instanceID != "" {
		opts = append(opts, kgo.InstanceID(c.shared.opt.Membership.instanceID))
	}
	if c.shared.opt.Membership.serverSide {
		opts = append(opts, kgo.ServerSideBalancer())
	} else {
		opts = append(opts, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	}
	return opts
}

// A newClient stores the client before it joins the group, because callbacks may run before
// kgo.NewClient returns.
type newClient struct{ c *shared }

var _ kgo.HookNewClient = newClient{}

func (n newClient) OnNewClient(client *kgo.Client) {
	n.c.brokers = newClients(client)
	n.c.publishers = make(map[string]*deadletter.Publisher)
	for _, topic := range n.c.opt.letterTopics() {
		n.c.publishers[topic] = deadletter.NewPublisher(client, topic)
	}
}
