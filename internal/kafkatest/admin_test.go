package kafkatest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestRequestsAreRetriedWhileTheBrokerIsNotReady(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	group := kafkatest.Name(t)
	looking := b.Cluster(t).Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.FindCoordinator}, Group: group, Err: kerr.CoordinatorNotAvailable, Count: 3,
	})
	b.UntilMembers(t, group, 0)
	if looking.Hits() < 3 {
		t.Errorf("asked %d times", looking.Hits())
	}
}

func TestTopicIsCreatedWhenABrokerIsBack(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	for _, err := range []*kerr.Error{kerr.InvalidReplicationFactor, kerr.RequestTimedOut} {
		making := b.Cluster(t).Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: err, Count: 3})
		b.CreateTopic(t, 1, nil)
		if making.Hits() < 3 {
			t.Errorf("%v: asked %d times", err, making.Hits())
		}
	}
}

func TestUnknownGroupHasCommittedNothing(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	if o, ok := b.Committed(t, kafkatest.Name(t), b.CreateTopic(t, 1, nil), 0); ok {
		t.Errorf("committed %+v", o)
	}
}

// A seen is a testing.TB that records why it failed.
type seen struct {
	testing.TB
	why string
}

func (s *seen) Fatalf(format string, args ...any) {
	s.why = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestConsumerThatEndsByItselfFailsAtOnce(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic, group := b.CreateTopic(t, 1, nil), kafkatest.Name(t)
	broken := errors.New("broken")
	s := &seen{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() { b.RunUntilCommitted(s, group, topic, 0, 1, func(context.Context) error { return broken }) })
	wg.Wait()
	if !strings.Contains(s.why, broken.Error()) {
		t.Errorf("failed with %q", s.why)
	}
}

func TestConsumerThatFailsAtItsEndIsSeen(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic, group := b.CreateTopic(t, 1, nil), kafkatest.Name(t)
	s := &seen{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() {
		b.RunUntilCommitted(s, group, topic, 0, 1, func(ctx context.Context) error {
			b.Commit(t, group, kadm.Offset{Topic: topic, Partition: 0, At: 1, LeaderEpoch: -1})
			<-ctx.Done()
			return ctx.Err()
		})
	})
	wg.Wait()
	if !strings.Contains(s.why, context.Canceled.Error()) {
		t.Errorf("failed with %q", s.why)
	}
}
