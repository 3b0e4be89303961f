package changelog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// appendAll appends records and returns the last answer.
func appendAll(t *testing.T, l *Log, values ...string) (last replica.Ack) {
	t.Helper()
	for _, v := range values {
		var err error
		if last, err = l.Append(t.Context(), []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	return last
}

func TestRecordsAreReadInOrder(t *testing.T) {
	b, c, topic := preparedTopic(t, kafkatest.Options{}, 2)
	l := c.Log(topic, 1)
	if id, err := l.Topic(t.Context()); err != nil || id != b.TopicID(t, topic) {
		t.Errorf("topic id %x, %v", id, err)
	}
	var want []string
	for i := range 10 {
		v := fmt.Sprint("record", i, strings.Repeat("x", i*100_000)) // more than one fetch
		want = append(want, fmt.Sprint(i, " ", v))
		if ack := appendAll(t, l, v); ack.Offset != int64(i) || ack.Epoch < 0 {
			t.Errorf("record %d is acknowledged as %+v", i, ack)
		}
	}
	if start, end, err := l.Bounds(t.Context()); start != 0 || end != 10 || err != nil {
		t.Errorf("bounds %d, %d, %v", start, end, err)
	}
	got, err := read(t.Context(), c.Log(topic, 1), 0, 10)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%d records, %v", len(got), err)
	}
	if got, err := read(t.Context(), l, 3, 5); err != nil || !slices.Equal(got, want[3:5]) {
		t.Errorf("a part: %d records, %v", len(got), err)
	}
	n := 0
	if err := l.Read(t.Context(), 0, 1<<62, func(int64, []byte) bool { n++; return n < 4 }); err != nil || n != 4 {
		t.Errorf("until fn has enough: %d records, %v", n, err)
	}
	if _, err := read(t.Context(), c.Log(topic, 0), 0, 0); err != nil {
		t.Error(err)
	}
}

func TestReadWaitsForRecords(t *testing.T) {
	_, c, topic := preparedTopic(t, kafkatest.Options{}, 1)
	l := c.Log(topic, 0)
	appendAll(t, l, "a")
	seen, done := make(chan int64, 3), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- l.Read(ctx, 0, 1<<62, func(offset int64, _ []byte) bool { seen <- offset; return true })
	}()
	for i := range int64(3) {
		if at := kafkatest.Receive(t, seen); at != i {
			t.Errorf("offset %d, want %d", at, i)
		}
		appendAll(t, l, "next")
	}
	cancel()
	if err := kafkatest.Receive(t, done); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Transactions are those of others. Their records are void for package replica, and so are the markers.
func TestUncommittedRecordsAreReadAndMarkersPassed(t *testing.T) {
	b, c, topic := preparedTopic(t, kafkatest.Options{}, 1)
	l := c.Log(topic, 0)
	appendAll(t, l, "a")
	b.ProduceTx(t, false, &kgo.Record{Topic: topic, Value: []byte("aborted")})
	got, err := read(t.Context(), l, 0, 3) // it ends with the marker
	if want := []string{"0 a", "1 aborted"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	hanging := b.Client(t, kgo.TransactionalID(kafkatest.Name(t)), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err := errors.Join(hanging.BeginTransaction(), hanging.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("open")}).FirstErr()); err != nil {
		t.Fatal(err)
	}
	if ack := appendAll(t, l, "b"); ack.Offset != 4 {
		t.Errorf("%+v", ack)
	}
	if got, err := read(t.Context(), l, 3, 5); err != nil || !slices.Equal(got, []string{"3 open", "4 b"}) {
		t.Errorf("while a transaction is open: %q, %v", got, err)
	}
	if err := hanging.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Error(err)
	}
}

func TestTrimmedLogIsOutOfRange(t *testing.T) {
	b, c, topic := preparedTopic(t, kafkatest.Options{}, 1)
	s := open(t, c, topic, 0, newCopies())
	if err := apply(s, 5); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b.DeleteRecords(t, topic, 0, 3)
	l := c.Log(topic, 0)
	for _, from := range []int64{0, 2, 100} {
		if _, err := read(t.Context(), l, from, from+1); !errors.Is(err, replica.ErrOutOfRange) {
			t.Errorf("reading at %d: %v", from, err)
		}
	}
	if start, end, err := l.Bounds(t.Context()); start != 3 || end != 6 || err != nil {
		t.Errorf("bounds %d, %d, %v", start, end, err)
	}
	if _, err := replica.Open(t.Context(), l, newCopies(), replica.Options{}); !errors.Is(err, replica.ErrChangelogDamaged) {
		t.Errorf("restoring from a trimmed log: %v", err)
	}
}

func TestRecreatedTopicIsNotContinued(t *testing.T) {
	b, c, topic := preparedTopic(t, kafkatest.Options{}, 1)
	copies := newCopies()
	s := open(t, c, topic, 0, copies)
	if err := errors.Join(apply(s, 5), s.Close()); err != nil {
		t.Fatal(err)
	}
	l := c.Log(topic, 0)
	if _, err := l.Topic(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.DeleteTopic(t, topic)
	if err := c.Prepare(t.Context(), topic, 1); err != nil {
		t.Fatal(err)
	}
	_, _, err := l.Bounds(t.Context())
	_, err2 := read(t.Context(), l, 0, 1)
	for _, err := range []error{err, err2} {
		if !errors.Is(err, ErrRecreated) {
			t.Errorf("a log of the topic before: %v", err)
		}
	}
	// The producer of this process still has the topic before, and learns of the new one by an error.
	if _, err := replica.Open(t.Context(), c.Log(topic, 0), newCopies(), replica.Options{}); err != nil && !errors.Is(err, ErrRecreated) {
		t.Error(err)
	}
	again := open(t, c, topic, 0, copies)
	if again.Restore().Discarded == nil || lastOf(again) != 0 {
		t.Errorf("the copy of the topic before: %+v", again.Restore())
	}
	if err := apply(again, 3); err != nil {
		t.Error(err)
	}
}

func TestDeletedTopicIsMissing(t *testing.T) {
	b, c, topic := preparedTopic(t, kafkatest.Options{}, 1)
	s := open(t, c, topic, 0, newCopies())
	b.DeleteTopic(t, topic)
	if err := apply(s, 1); !errors.Is(err, ErrNoTopic) {
		t.Errorf("appending: %v", err)
	}
	if _, err := c.Log(topic, 0).Topic(t.Context()); !errors.Is(err, ErrNoTopic) {
		t.Errorf("looking it up: %v", err)
	}
}

// silence makes the embedded broker not answer requests of a key until release is called.
func silence(t *testing.T, cluster *kfake.Cluster, key kmsg.Key) (held <-chan struct{}, release func()) {
	t.Helper()
	asked, released := make(chan struct{}, 100), make(chan struct{})
	cluster.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		select {
		case <-released:
		default:
			asked <- struct{}{}
			cluster.SleepControl(func() { <-released })
		}
		return nil, nil, false
	})
	done := false
	release = func() {
		if !done {
			done = true
			close(released)
		}
	}
	t.Cleanup(release)
	return asked, release
}

// A record whose append was given up is in flight: it lands before the next open, or after it.
func TestAppendEndsWithTheOwnershipAndMayLand(t *testing.T) {
	b, c, topic := preparedTopic(t, kafkatest.Options{}, 1)
	s := open(t, c, topic, 0, newCopies())
	if err := apply(s, 3); err != nil {
		t.Fatal(err)
	}
	asked, release := silence(t, b.Cluster(t), kmsg.Produce)
	done := make(chan error, 1)
	go func() { done <- apply(s, 4) }()
	kafkatest.Receive(t, asked)
	s.Revoke()
	if err := kafkatest.Receive(t, done); !errors.Is(err, replica.ErrRevoked) || !errors.Is(err, replica.ErrUnknownOutcome) {
		t.Errorf("a batch without an answer: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	opened := make(chan *replica.Store, 1)
	go func() { opened <- open(t, c, topic, 0, newCopies()) }() // waits for the outcome
	release()
	next := kafkatest.Receive(t, opened)
	if last := lastOf(next); last != 3 && last != 4 {
		t.Errorf("the last batch is %d", last)
	}
	if err := apply(next, 9); err != nil {
		t.Error(err)
	}
	if other := open(t, connect(t, b, Options{}), topic, 0, newCopies()); lastOf(other) != 9 {
		t.Errorf("restored up to %d", lastOf(other))
	}
}

// The bytes of a record that was given up are those that land.
func TestRecordThatWasGivenUpLandsWhole(t *testing.T) {
	b, c, topic := preparedTopic(t, kafkatest.Options{}, 1)
	l := c.Log(topic, 0)
	appendAll(t, l, "first")
	asked, release := silence(t, b.Cluster(t), kmsg.Produce)
	ctx, cancel := context.WithCancel(t.Context())
	value := bytes.Repeat([]byte("value"), 1000)
	done := make(chan error, 1)
	go func() { _, err := l.Append(ctx, value); done <- err }()
	kafkatest.Receive(t, asked)
	cancel()
	if err := kafkatest.Receive(t, done); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	waiting, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := l.Append(waiting, []byte("behind it")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("appending while a record is in flight: %v", err)
	}
	release()
	if ack := appendAll(t, l, "third"); ack.Offset != 2 {
		t.Errorf("the next one is %+v", ack)
	}
	got, err := read(t.Context(), l, 1, 3)
	if err != nil || !slices.Equal(got, []string{"1 " + string(value), "2 third"}) {
		t.Errorf("%.40q, %v", got, err)
	}
}

func TestCloseDoesNotWaitForTheBroker(t *testing.T) {
	kafkatest.NoGoroutines(t, "kafkaadapter/changelog")
	b, c, topic := preparedTopic(t, kafkatest.Options{}, 1)
	s := open(t, c, topic, 0, newCopies())
	asked, _ := silence(t, b.Cluster(t), kmsg.Produce)
	appended, readDone := make(chan error, 1), make(chan error, 1)
	go func() { appended <- apply(s, 1) }()
	go func() { _, err := read(context.Background(), c.Log(topic, 0), 0, 10); readDone <- err }()
	kafkatest.Receive(t, asked)
	c.Close()
	if err := kafkatest.Receive(t, appended); !errors.Is(err, ErrClosed) || !errors.Is(err, replica.ErrUnknownOutcome) {
		t.Errorf("an append when the client is closed: %v", err)
	}
	if err := kafkatest.Receive(t, readDone); !errors.Is(err, ErrClosed) {
		t.Errorf("a read when the client is closed: %v", err)
	}
	if _, err := c.Log(topic, 0).Append(t.Context(), []byte("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("an append after that: %v", err)
	}
	c.Close()
}

// The broker has appended a record and its answer says something else; the client sends it again.
func TestRecordThatIsSentAgainIsAppendedOnce(t *testing.T) {
	for _, without := range []bool{false, true} {
		t.Run(fmt.Sprintf("without offset %v", without), func(t *testing.T) {
			b, c, topic := preparedTopic(t, kafkatest.Options{}, 1)
			cluster := b.Cluster(t)
			s := open(t, c, topic, 0, newCopies())
			if err := apply(s, 2); err != nil {
				t.Fatal(err)
			}
			after := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.NotEnoughReplicasAfterAppend})
			if without {
				n := 0
				cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
					cluster.KeepControl()
					if n++; n != 2 {
						return nil, nil, false
					}
					return duplicate(r.(*kmsg.ProduceRequest)), nil, true
				})
			}
			if err := apply(s, 3); err != nil {
				t.Errorf("a batch that the log has once: %v", err)
			}
			if after.Hits() != 1 {
				t.Error("the broker was not asked twice")
			}
			if err := apply(s, 5); err != nil {
				t.Error(err)
			}
			if l := b.Log(t, topic, 0); l.End != 6 {
				t.Errorf("the log has %d records", l.End)
			}
		})
	}
}

// duplicate answers that the broker has all records already, and does not know where.
func duplicate(r *kmsg.ProduceRequest) kmsg.Response {
	resp := r.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range r.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode, rp.BaseOffset = p.Partition, kerr.DuplicateSequenceNumber.Code, -1
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// The broker no longer knows what the producer has written.
func TestLossReplacesTheProducerOfAllLogs(t *testing.T) {
	for _, loss := range []*kerr.Error{kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID} {
		b, c, topic := preparedTopic(t, kafkatest.Options{}, 2)
		cluster := b.Cluster(t)
		one, other := open(t, c, topic, 0, newCopies()), open(t, c, topic, 1, newCopies())
		if err := errors.Join(apply(one, 2), apply(other, 2)); err != nil {
			t.Fatal(err)
		}
		cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Partitions: []int32{0}, Err: loss})
		for _, s := range []*replica.Store{one, other} {
			if err := apply(s, 3); !errors.Is(err, ErrLossDetected) || !errors.Is(err, replica.ErrUnknownOutcome) {
				t.Errorf("after %v: %v", loss, err)
			}
		}
		one, other = open(t, c, topic, 0, newCopies()), open(t, c, topic, 1, newCopies())
		if lastOf(one) != 2 || lastOf(other) != 2 {
			t.Errorf("restored up to %d and %d", lastOf(one), lastOf(other))
		}
		if err := errors.Join(apply(one, 4), apply(other, 4)); err != nil {
			t.Error(err)
		}
	}
}

func TestErrorOfOnePartitionIsItsOwn(t *testing.T) {
	for fault, want := range map[*kerr.Error]error{
		kerr.MessageTooLarge: ErrTooLarge, kerr.TopicAuthorizationFailed: ErrPermission, kerr.PolicyViolation: kerr.PolicyViolation,
	} {
		b, c, topic := preparedTopic(t, kafkatest.Options{}, 2)
		cluster := b.Cluster(t)
		one, other := open(t, c, topic, 0, newCopies()), open(t, c, topic, 1, newCopies())
		cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Partitions: []int32{0}, Err: fault})
		if err := apply(one, 1); !errors.Is(err, want) {
			t.Errorf("%v: %v", fault, err)
		}
		again := open(t, c, topic, 0, newCopies())
		if err := errors.Join(apply(other, 2), apply(again, 2)); err != nil {
			t.Errorf("after %v: %v", fault, err)
		}
	}
}

func TestRightsOfAReader(t *testing.T) {
	b, c, topic := preparedTopic(t, kafkatest.Options{}, 1)
	appendAll(t, c.Log(topic, 0), "a")
	cluster := b.Cluster(t)
	for _, key := range []kmsg.Key{kmsg.Fetch, kmsg.ListOffsets, kmsg.Metadata} {
		refusing := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Topic: topic, Err: kerr.TopicAuthorizationFailed, Count: -1})
		l := connect(t, b, Options{}).Log(topic, 0)
		_, _, err := l.Bounds(t.Context())
		if err == nil {
			_, err = read(t.Context(), l, 0, 1)
		}
		if !errors.Is(err, ErrPermission) {
			t.Errorf("%v: %v", key, err)
		}
		refusing.Remove()
	}
}

// An answer of a leader with another epoch is noticed, also if the client had no other sign of it than a new
// connection.
func TestAcknowledgementHasTheEpochOfTheLeader(t *testing.T) {
	b, c, topic := preparedTopic(t, kafkatest.Options{Nodes: 2}, 1)
	cluster := b.Cluster(t)
	l := c.Log(topic, 0)
	before := appendAll(t, l, "a")
	leader := cluster.LeaderFor(topic, 0)
	for range 3 {
		leader = 1 - leader
		if err := cluster.MoveTopicPartition(topic, 0, leader); err != nil {
			t.Fatal(err)
		}
		after := appendAll(t, l, "b")
		if after.Epoch <= before.Epoch {
			t.Errorf("epoch %d after %d", after.Epoch, before.Epoch)
		}
		before = after
	}
	asked := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Count: -1, Observe: true})
	for range 20 {
		appendAll(t, l, "c")
	}
	if n := asked.Hits(); n > 15 {
		t.Errorf("the leader was asked %d times for its epoch", n)
	}
}

func TestReaderFollowsTheLeader(t *testing.T) {
	b, c, topic := preparedTopic(t, kafkatest.Options{Nodes: 2}, 1)
	cluster := b.Cluster(t)
	l := c.Log(topic, 0)
	leader, n := cluster.LeaderFor(topic, 0), int64(0)
	appendAll(t, l, "a")
	err := c.Log(topic, 0).Read(t.Context(), 0, 6, func(offset int64, _ []byte) bool {
		if offset != n {
			t.Errorf("offset %d, want %d", offset, n)
		}
		n++
		leader = 1 - leader
		if err := cluster.MoveTopicPartition(topic, 0, leader); err != nil {
			t.Error(err)
		}
		appendAll(t, l, "b")
		return true
	})
	if err != nil || n != 6 {
		t.Errorf("%d records, %v", n, err)
	}
}

// A new leader that does not have what was read of the epoch before has lost it.
func TestReaderNoticesALogThatWasRewritten(t *testing.T) {
	b, c, topic := preparedTopic(t, kafkatest.Options{Nodes: 2}, 1)
	cluster := b.Cluster(t)
	l := c.Log(topic, 0)
	appendAll(t, l, "a", "b", "c")
	if err := cluster.MoveTopicPartition(topic, 0, 1-cluster.LeaderFor(topic, 0)); err != nil {
		t.Fatal(err)
	}
	appendAll(t, l, "d")
	topicNow, err := l.lookUp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := reading{log: l, epoch: 0}
	leader, _ := topicNow.Leader(0)
	r.epoch = leader.Epoch - 1
	if err := r.checkEpoch(t.Context(), topicNow, 3); err != nil {
		t.Errorf("three records of the epoch before: %v", err)
	}
	if err := r.checkEpoch(t.Context(), topicNow, 4); !errors.Is(err, replica.ErrOutOfRange) {
		t.Errorf("a record that the new leader does not have: %v", err)
	}
}
