// Package topics makes and fills the topics of a run, on given brokers or on an embedded one.
package topics

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/internal/wait"
)

// A Broker has the topics of a run: given brokers, or one inside this process that ends with it.
// The processes that are killed are its clients, never the broker.
type Broker struct {
	Seeds    []string
	Embedded *kfake.Cluster // nil: the brokers are not the benchmark's
	Client   *kgo.Client
	admin    *kadm.Client
}

// Open connects to the brokers, or starts one if there are none.
func Open(ctx context.Context, seeds []string) (*Broker, error) {
	b := &Broker{Seeds: seeds}
	if len(seeds) == 0 {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			return nil, fmt.Errorf("starting the embedded broker: %w", err)
		}
		b.Embedded, b.Seeds = cluster, cluster.ListenAddrs()
	}
	// It uses the client's default partitioner: a hash of the key. Nothing is compressed, which is
	// the default of Kafka's own producer but not of this client: the values are incompressible.
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Seeds...), kgo.MaxBufferedRecords(maxUnsent), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("%w: brokers %s: %w", ErrAddress, strings.Join(b.Seeds, ","), err)
	}
	b.Client, b.admin = client, kadm.NewClient(client)
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := client.Ping(asking); err != nil {
		b.Close()
		return nil, fmt.Errorf("no broker answers at %s: start one, or leave --brokers out for the embedded one: %w", strings.Join(b.Seeds, ","), err)
	}
	return b, nil
}

// ErrAddress is returned for invalid addresses of brokers.
var ErrAddress = errors.New("not the address of a broker")

// mostAtOnce is the number of partitions that one request makes; brokers refuse 10,000.
const mostAtOnce = 4000

const (
	patience  = 10 * time.Second
	maxUnsent = 50_000 // records
)

// Close ends the connections, and the embedded broker.
func (b *Broker) Close() {
	if b.Client != nil {
		b.Client.Close()
	}
	if b.Embedded != nil {
		b.Embedded.Close()
	}
}

// A Topic is one that a run has made, with its dead-letter topic.
type Topic struct {
	Broker *Broker
	Name   string
	groups []string // groups that have read it, each with one static member
}

// New makes a topic with a new name. If the topic is not nil, it must be removed, even after an
// error.
func (b *Broker) New(ctx context.Context, parts int, config map[string]*string) (*Topic, error) {
	t := &Topic{Broker: b, Name: "dedupbench-" + strings.ToLower(rand.Text()[:12])}
	made, err := b.admin.CreateTopics(ctx, int32(min(parts, mostAtOnce)), -1, config, t.Name)
	if err == nil {
		err = made.Error()
	}
	for have := mostAtOnce; have < parts && err == nil; have += mostAtOnce {
		var more kadm.CreatePartitionsResponses
		if more, err = b.admin.UpdatePartitions(ctx, min(have+mostAtOnce, parts), t.Name); err == nil {
			err = more.Error()
		}
	}
	if err == nil {
		made, err = b.admin.CreateTopics(ctx, 1, -1, nil, t.letters())
	}
	if err = errors.Join(err, made.Error()); err != nil {
		return nil, fmt.Errorf("making the topic %s: %w", t.Name, err)
	}
	return t, t.await(ctx, patience+time.Duration(parts)*20*time.Millisecond)
}

// letters returns the name of the dead-letter topic, the adapter's default.
func (t *Topic) letters() string { return t.Name + "-dlt" }

// Group returns the name of a new group that reads the topic.
func (t *Topic) Group(name string) string {
	name = t.Name + "-" + name
	t.groups = append(t.groups, name)
	return name
}

// Instance is the only, static member of each group.
const Instance = "worker"

// await waits until the brokers know leaders for all partitions.
func (t *Topic) await(ctx context.Context, limit time.Duration) error {
	for end := time.Now().Add(limit); ; {
		details, err := t.Broker.admin.ListTopics(ctx, t.Name, t.letters())
		if err == nil {
			err = details.Error()
		}
		if err == nil {
			_, err = t.Ends(ctx)
		}
		if err == nil || time.Now().After(end) {
			return err
		}
		if err := wait.For(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// Ends returns the offset after the last record of each partition.
func (t *Topic) Ends(ctx context.Context) ([]int64, error) {
	listed, err := t.Broker.admin.ListEndOffsets(ctx, t.Name)
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

// Remove deletes the topic and its groups from the brokers of others, even after an interrupted
// run.
func (t *Topic) Remove(err *error) {
	if t.Broker.Embedded != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, g := range t.groups { // a killed member is still in it
		_, _ = t.Broker.admin.LeaveGroup(ctx, kadm.LeaveGroup(g).InstanceIDs(Instance))
	}
	// the brokers remove an empty group by themselves
	_, _ = t.Broker.admin.DeleteGroups(ctx, t.groups...)
	names := []string{t.Name, t.letters()}
	if all, lerr := t.Broker.admin.ListTopics(ctx); lerr == nil { // topics that a consumer has made
		for name := range all {
			if strings.HasPrefix(name, t.Name+"-") && name != t.letters() {
				names = append(names, name)
			}
		}
	}
	gone, derr := t.Broker.admin.DeleteTopics(ctx, names...)
	if derr == nil {
		derr = gone.Error()
	}
	if derr != nil && *err == nil {
		*err = fmt.Errorf("the topics %s could not be deleted: delete them: %w", strings.Join(names, ", "), derr)
	}
}

// A Filled topic holds a whole log.
type Filled struct {
	Topic    *Topic
	Log      *traffic.Log
	Ends     []int64 // the offset after the last record of each partition
	Distinct uint64
	Took     time.Duration
}

// Fill sends a whole log to a new topic. On its return, the brokers have all of it.
func (b *Broker) Fill(ctx context.Context, log *traffic.Log, parts int, config map[string]*string) (f *Filled, err error) {
	t, err := b.New(ctx, parts, config)
	if t == nil {
		return nil, err
	}
	f = &Filled{Topic: t, Log: log}
	if err == nil {
		err = f.send(ctx)
	}
	if err == nil {
		f.Ends, err = t.Ends(ctx)
	}
	sent := int64(0)
	for _, end := range f.Ends {
		sent += end
	}
	if err == nil && sent != int64(log.N) {
		err = fmt.Errorf("%d records were sent, the brokers have %d", log.N, sent)
	}
	if err != nil {
		t.Remove(&err)
		return nil, err
	}
	return f, nil
}

func (f *Filled) send(ctx context.Context) error {
	start := time.Now()
	var once sync.Once
	failed := make(chan error, 1)
	acked := func(_ *kgo.Record, err error) {
		if err != nil {
			once.Do(func() { failed <- fmt.Errorf("producing to %s: %w", f.Topic.Name, err) })
		}
	}
	seq := f.Log.Begin()
	for range f.Log.N {
		f.Topic.Broker.Client.Produce(ctx, seq.Record(f.Topic.Name), acked)
		if ctx.Err() != nil || len(failed) > 0 {
			break
		}
	}
	if err := f.Topic.Broker.Client.Flush(ctx); err != nil {
		return err
	}
	f.Distinct, f.Took = seq.Distinct(), time.Since(start)
	select {
	case err := <-failed:
		return err
	default:
		return ctx.Err()
	}
}
