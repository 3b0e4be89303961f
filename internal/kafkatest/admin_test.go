package kafkatest_test

import (
	"testing"

	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestAskingGoesOnWhileTheBrokerIsNotReady(t *testing.T) {
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

func TestUnknownGroupHasCommittedNothing(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	if o, ok := b.Committed(t, kafkatest.Name(t), b.CreateTopic(t, 1, nil), 0); ok {
		t.Errorf("committed %+v", o)
	}
}
