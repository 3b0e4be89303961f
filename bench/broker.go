package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/wait"
)

// A broker has the topics of a run: given brokers, or one inside this process that ends with it.
// The processes that are killed are its clients, never the broker.
type broker struct {
	seeds    []string
	embedded *kfake.Cluster // nil: the brokers are not the benchmark's
	client   *kgo.Client
	admin    *kadm.Client
}

// openBroker connects to the brokers, or starts one if there are none.
func openBroker(ctx context.Context, seeds []string) (*broker, error) {
	b := &broker{seeds: seeds}
	if len(seeds) == 0 {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			return nil, fmt.Errorf("starting the embedded broker: %w", err)
		}
		b.embedded, b.seeds = cluster, cluster.ListenAddrs()
	}
	// It uses the client's default partitioner: a hash of the key. Nothing is compressed, which is
	// the default of Kafka's own producer but not of this client: the values are incompressible.
	client, err := kgo.NewClient(kgo.SeedBrokers(b.seeds...), kgo.MaxBufferedRecords(maxUnsent), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		b.close()
		return nil, fmt.Errorf("%w: brokers %s: %w", ErrUsage, strings.Join(b.seeds, ","), err)
	}
	b.client, b.admin = client, kadm.NewClient(client)
	asking, cancel := context.WithTimeout(ctx, brokerPatience)
	defer cancel()
	if err := client.Ping(asking); err != nil {
		b.close()
		return nil, fmt.Errorf("no broker answers at %s: start one, or leave --brokers out for the embedded one: %w", strings.Join(b.seeds, ","), err)
	}
	return b, nil
}

const (
	brokerPatience = 10 * time.Second
	maxUnsent      = 50_000 // records
)

func (b *broker) close() {
	if b.client != nil {
		b.client.Close()
	}
	if b.embedded != nil {
		b.embedded.Close()
	}
}

// A topic is one that a run has made, with its dead-letter topic.
type topic struct {
	broker *broker
	Name   string
	groups []string // that have read it, each with one static member
}

// newTopic makes a topic of a new name.
func (b *broker) newTopic(ctx context.Context, parts int) (*topic, error) {
	var unique [6]byte
	if _, err := rand.Read(unique[:]); err != nil {
		return nil, err
	}
	t := &topic{broker: b, Name: fmt.Sprintf("dedupbench-%x", unique)}
	made, err := b.admin.CreateTopics(ctx, int32(parts), -1, nil, t.Name)
	if err == nil {
		err = made.Error()
	}
	if err == nil {
		made, err = b.admin.CreateTopics(ctx, 1, -1, nil, t.letters())
	}
	if err = errors.Join(err, made.Error()); err != nil {
		return nil, fmt.Errorf("making the topic %s: %w", t.Name, err)
	}
	return t, t.await(ctx)
}

// letters returns the name of the dead-letter topic, the adapter's default.
func (t *topic) letters() string { return t.Name + "-dlt" }

// group returns the name of a new group that reads the topic.
func (t *topic) group(name string) string {
	name = t.Name + "-" + name
	t.groups = append(t.groups, name)
	return name
}

// instance returns the only, static member of each group.
const instance = "worker"

// await waits until the brokers know leaders for all partitions.
func (t *topic) await(ctx context.Context) error {
	for end := time.Now().Add(brokerPatience); ; {
		details, err := t.broker.admin.ListTopics(ctx, t.Name, t.letters())
		if err == nil {
			err = details.Error()
		}
		if err == nil {
			_, err = t.ends(ctx)
		}
		if err == nil || time.Now().After(end) {
			return err
		}
		if err := wait.For(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// ends returns the offset after the last record of each partition.
func (t *topic) ends(ctx context.Context) ([]int64, error) {
	listed, err := t.broker.admin.ListEndOffsets(ctx, t.Name)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("looking up the ends of %s: %w", t.Name, err)
	}
	ends := make([]int64, len(listed[t.Name]))
	for p, o := range listed[t.Name] {
		ends[p] = o.Offset
	}
	return ends, nil
}

// remove deletes the topic and its groups from brokers of others, also after an interrupted run.
func (t *topic) remove(err *error) {
	if t.broker.embedded != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), brokerPatience)
	defer cancel()
	for _, g := range t.groups { // a killed member is still in it
		_, _ = t.broker.admin.LeaveGroup(ctx, kadm.LeaveGroup(g).InstanceIDs(instance))
	}
	// the brokers remove an empty group by themselves
	_, _ = t.broker.admin.DeleteGroups(ctx, t.groups...)
	gone, derr := t.broker.admin.DeleteTopics(ctx, t.Name, t.letters())
	if derr == nil {
		derr = gone.Error()
	}
	if derr != nil && *err == nil {
		*err = fmt.Errorf("the topics %s and %s could not be deleted: delete them: %w", t.Name, t.letters(), derr)
	}
}
