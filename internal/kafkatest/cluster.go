package kafkatest

import (
	"context"
	"crypto/rand"
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Options configure the embedded broker. They do not affect the real one.
type Options struct {
	// Embedded uses the embedded broker even if KAFKA_BROKERS names a real one.
	Embedded bool
	// CreateTopics creates topics with one partition for clients that ask for it.
	CreateTopics bool
	// Nodes is the number of brokers in the cluster, 1 unless set.
	Nodes int
	// Durable keeps the data in a directory of the test, so that the broker can be killed and
	// revived. It is slower.
	Durable bool
}

// A cluster is the part of a Broker that all other parts need.
type cluster struct {
	options Options
	dir     string // the data directory of a durable embedded broker
	addrs   []string
	real    bool

	mu   sync.Mutex     // guards fake, which Revive replaces
	fake *kfake.Cluster // nil: a real Kafka
}

// settings are those of .ci/kafka/server.properties that the embedded broker supports.
func (b *cluster) settings() []kfake.Opt {
	o := []kfake.Opt{
		kfake.NumBrokers(max(1, b.options.Nodes)),
		kfake.GroupMinSessionTimeout(time.Second),
		kfake.BrokerConfigs(map[string]string{
			"group.consumer.session.timeout.ms":    "30000",
			"group.consumer.heartbeat.interval.ms": "250",
		}),
	}
	if b.options.CreateTopics {
		o = append(o, kfake.AllowAutoTopicCreation(), kfake.DefaultNumPartitions(1))
	}
	if b.dir != "" {
		o = append(o, kfake.DataDir(b.dir))
	}
	return o
}

// Addrs returns the addresses for clients.
func (b *cluster) Addrs() []string { return b.addrs }

// Real reports whether this is a real Kafka.
func (b *cluster) Real() bool { return b.real }

// Cluster returns the embedded broker with all its methods: faults, moving leaders, inspection. On
// the real one, the test is skipped. Revive makes another cluster, without the faults of the old
// one.
func (b *cluster) Cluster(t testing.TB) *kfake.Cluster {
	t.Helper()
	if b.real {
		t.Skip("only the embedded broker can do this; KAFKA_BROKERS names a real one")
	}
	return b.embedded()
}

func (b *cluster) embedded() *kfake.Cluster {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fake
}

// ClientOptions are the addresses, and options to find new topics and leaders quickly.
func (b *cluster) ClientOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(b.addrs...),
		kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.MetadataMaxAge(time.Second),
	}
}

// Client returns a client of this broker that is closed when the test ends. Its options come after
// ClientOptions.
func (b *cluster) Client(t testing.TB, o ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(b.ClientOptions(), o...)...)
	if err != nil {
		t.Fatal("making a client:", err)
	}
	t.Cleanup(c.CloseAllowingRebalance)
	return c
}

// admin runs f with an administrator's client, and repeats it while the broker is not ready. A real
// broker first looks for its coordinators, and cannot create a topic while the controller has
// missed its heartbeats.
func (b *cluster) admin(t testing.TB, what string, f func(context.Context, *kadm.Client) error) {
	t.Helper()
	c, err := kgo.NewClient(b.ClientOptions()...)
	if err != nil {
		t.Fatal("making a client:", err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	Within(patience, func() bool {
		err = f(ctx, kadm.NewClient(c))
		return !kerr.IsRetriable(err) && !errors.Is(err, kerr.InvalidReplicationFactor)
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func (b *cluster) ping(t testing.TB) {
	t.Helper()
	c := b.Client(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.Ping(ctx); err != nil {
		t.Fatalf("no Kafka answers at KAFKA_BROKERS=%s (start one: make kafka-up): %v", strings.Join(b.addrs, ","), err)
	}
}

var notInNames = regexp.MustCompile(`[^a-zA-Z0-9._-]+`)

// Name returns a unique name for a topic, a group or a transactional id, which contains the test's
// name.
func Name(t testing.TB) string {
	name := notInNames.ReplaceAllString(t.Name(), "-")
	return name[:min(len(name), 100)] + "-" + rand.Text()[:10]
}
