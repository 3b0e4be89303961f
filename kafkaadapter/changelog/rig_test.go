package changelog

import (
	"context"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// connect returns a client of a broker that does not wait long for missing topics.
func connect(t testing.TB, b *kafkatest.Broker, o Options, more ...kgo.Opt) *Client {
	t.Helper()
	c, err := New(append(b.ClientOptions(), more...), o)
	if err != nil {
		t.Fatal(err)
	}
	c.unknownFor = 200 * time.Millisecond
	t.Cleanup(c.Close)
	return c
}

// prepared returns a broker, a client of it, and a topic that it has prepared.
func preparedTopic(t testing.TB, o kafkatest.Options, partitions int) (*kafkatest.Broker, *Client, string) {
	t.Helper()
	b := kafkatest.Start(t, o)
	c := connect(t, b, Options{Replication: 1})
	topic := kafkatest.Name(t)
	if err := c.Prepare(t.Context(), topic, partitions); err != nil {
		t.Fatal(err)
	}
	if b.Real() {
		t.Cleanup(func() { b.DeleteTopic(t, topic) })
	}
	return b, c, topic
}

// memCopies keeps a copy in memory.
type memCopies struct {
	disk *storetest.Disk
	dir  string
	made bool
}

func newCopies() *memCopies { return &memCopies{disk: storetest.NewDisk(), dir: "copy"} }

func (c *memCopies) Open() (storage.Store, error) {
	if !c.made {
		return nil, fs.ErrNotExist
	}
	return c.Create(storage.Identity{})
}

func (c *memCopies) Create(id storage.Identity) (storage.Store, error) {
	m, err := c.disk.Open(c.dir, id)
	c.made = err == nil
	return m, err
}

func (c *memCopies) Remove() error {
	c.dir, c.made = fmt.Sprint(c.dir, "-again"), false
	return nil
}

// open opens the log of a partition.
func open(t testing.TB, c *Client, topic string, partition int32, copies replica.Copies) *replica.Store {
	t.Helper()
	s, err := replica.Open(t.Context(), c.Log(topic, partition), copies, replica.Options{PartBytes: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// batch returns a batch that puts a state.
func batch(s *replica.Store, seq uint64) *storage.Batch {
	return &storage.Batch{Seq: seq, State: []storage.StateWrite{{Key: fmt.Append(nil, "h", seq), Value: fmt.Append(nil, "value", seq)}}}
}

// apply applies batches up to last.
func apply(s *replica.Store, last uint64) error {
	for seq := lastOf(s) + 1; seq <= last; seq++ {
		wait, err := s.Apply(batch(s, seq))
		if err == nil {
			err = wait()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lastOf returns the number of the last batch of a store.
func lastOf(s *replica.Store) (last uint64) {
	_ = s.ScanState(storage.Span{}, func(key, _ []byte) error {
		var n uint64
		if _, err := fmt.Sscanf(string(key), "h%d", &n); err == nil {
			last = max(last, n)
		}
		return nil
	})
	return last
}

// read returns the records of a log up to an offset.
func read(ctx context.Context, l *Log, from, to int64) (values []string, err error) {
	err = l.Read(ctx, from, to, func(offset int64, value []byte) bool {
		values = append(values, fmt.Sprint(offset, " ", string(value)))
		return true
	})
	return values, err
}
