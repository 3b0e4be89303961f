// Package kafkatest gives tests a Kafka broker: the embedded one of franz-go, or the real one that
// the environment variable KAFKA_BROKERS names. The same tests run on both.
//
// The embedded broker belongs to the test that started it. The real one is shared: topics and
// groups have unique names, and a test that kills it must not run in parallel with others. Methods
// that only the embedded one supports skip the test on the real one.
//
// No function sleeps to wait for a condition: Until checks it repeatedly until it holds or a
// generous timeout expires. A test that does not reach that timeout on a busy machine does not fail
// there, either.
package kafkatest

import (
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

// A Broker is a Kafka cluster for one test. Its methods fail the given test, and must be called
// from the goroutine of that test.
type Broker struct {
	*cluster
	topics
	groups
	producers
}

// Start returns a broker that answers requests. It ends with the test.
func Start(t testing.TB, o Options) *Broker {
	t.Helper()
	c := &cluster{options: o}
	b := &Broker{c, topics{c}, groups{topics{c}}, producers{topics{c}}}
	if named := os.Getenv("KAFKA_BROKERS"); named != "" && !o.Embedded {
		b.real, b.addrs = true, strings.Split(named, ",")
		b.ping(t)
		return b
	}
	if o.Durable {
		b.dir = t.TempDir()
	}
	fake, err := kfake.NewCluster(b.settings()...)
	if err != nil {
		t.Fatal("starting the embedded broker:", err)
	}
	b.fake, b.addrs = fake, fake.ListenAddrs()
	t.Cleanup(func() { b.embedded().Close() })
	return b
}

// EmbeddedOnly skips the test if KAFKA_BROKERS names a real broker. It is for tests that start an
// embedded one themselves.
func EmbeddedOnly(t testing.TB) {
	t.Helper()
	if os.Getenv("KAFKA_BROKERS") != "" {
		t.Skip("this test brings its own embedded broker; KAFKA_BROKERS asks for tests against a real one")
	}
}
