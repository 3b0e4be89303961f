package kafkaadapter

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func TestShutdownLetsTheHandlerFinish(t *testing.T) {
	r := newRig(t, 1)
	mode, began, release, verdict := r.stuck("a")
	m := r.start(t, mode, func(o *Options) { o.shutdownTimeout = time.Minute })
	r.send(t, 0, "a", "b")
	kafkatest.Receive(t, began)
	p := m.parts.get(topicPartition{r.topic, 0})
	m.cancel()
	kafkatest.Receive(t, p.ending.Done())
	if p.ctx.Err() != nil {
		t.Error("the handler's context has ended already")
	}
	close(release)
	if err := kafkatest.Receive(t, verdict); err != nil {
		t.Error(err)
	}
	m.stop(t)
	if r.effects(t, "a") != 1 || r.stored(t, 0) != int64(len(r.handled())) {
		t.Errorf("the store is at %d after %q", r.stored(t, 0), r.handledIDs())
	}
	r.UntilMembers(t, r.group, 0)
	if o, _ := r.Committed(t, r.group, r.topic, 0); o.At != r.stored(t, 0) {
		t.Errorf("Kafka has %d", o.At)
	}
}

func TestHandlerThatDoesNotEndIsCutOff(t *testing.T) {
	r := newRig(t, 1)
	mode, began, release, verdict := r.stuck("b")
	m := r.start(t, mode, func(o *Options) { o.shutdownTimeout, o.MaxBatch = 20*time.Millisecond, 1 })
	r.send(t, 0, "a", "b")
	kafkatest.Receive(t, began)
	m.cancel()
	kafkatest.Receive(t, m.done)
	if !errors.Is(m.err, context.DeadlineExceeded) {
		t.Errorf("Run: %v", m.err)
	}
	r.UntilMembers(t, r.group, 0) // it has left nevertheless
	close(release)
	kafkatest.Receive(t, verdict)
	again := r.start(t, r.work(5, nil))
	r.untilStored(t, 0, 2)
	again.stop(t)
	r.checkOnce(t, "a", "b")
	if r.get(t, []byte("zombie")) != nil {
		t.Error("a batch that was cut off has committed")
	}
}

func TestAtMostOnceCountsTheRecordsThatAreCutOff(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "c")
	began, release := make(chan struct{}), make(chan struct{})
	m := r.start(t, AtMostOnce(func(ctx context.Context, rec *Record) error {
		r.note(ctx, rec)
		close(began)
		<-ctx.Done()
		<-release
		return ctx.Err()
	}), func(o *Options) { o.shutdownTimeout = 20 * time.Millisecond })
	kafkatest.Receive(t, began)
	claimed := r.stored(t, 0)
	p := m.parts.get(topicPartition{r.topic, 0})
	m.cancel()
	kafkatest.Receive(t, m.done)
	close(release)
	kafkatest.Receive(t, p.done)
	if !errors.Is(m.err, context.DeadlineExceeded) || claimed == 0 {
		t.Errorf("Run: %v, the store is at %d", m.err, claimed)
	}
	if n := m.logs.count("they are lost"); n != 1 {
		t.Errorf("of %d claimed events, %d are reported as lost:\n%s", claimed, n, m.logs)
	}
}

func TestStaticMemberKeepsItsPlace(t *testing.T) {
	r := newRig(t, 2)
	static := func(o *Options) {
		o.Membership.instanceID = "one"
		o.Client = append(o.Client, kgo.SessionTimeout(30*time.Second))
	}
	r.send(t, 0, "a")
	m := r.start(t, r.work(1, nil), static)
	r.untilStored(t, 0, 1)
	r.UntilMembers(t, r.group, 1, r.topic)
	m.stop(t)
	r.UntilMembers(t, r.group, 1, r.topic) // it has ended, and still has its partitions
	r.send(t, 0, "b")
	m = r.start(t, r.work(1, nil), static)
	r.untilStored(t, 0, 2)
	r.UntilMembers(t, r.group, 1, r.topic)
	m.stop(t)
	r.checkOnce(t, "a", "b")
	a := kadm.NewClient(r.Client(t))
	if _, err := a.LeaveGroup(t.Context(), kadm.LeaveGroup(r.group).InstanceIDs("one")); err != nil {
		t.Error(err)
	}
}

func TestStaticMemberReturnsToTheServersAssignment(t *testing.T) {
	r := newRig(t, 1)
	server := func(o *Options) {
		o.Membership.serverSide, o.Membership.instanceID = true, "one"
		o.Client = r.ClientOptions()
	}
	r.send(t, 0, "a")
	m := r.start(t, r.work(1, nil), server)
	r.untilStored(t, 0, 1)
	m.stop(t)
	r.send(t, 0, "b")
	m = r.start(t, r.work(1, nil), server)
	r.untilStored(t, 0, 2)
	m.stop(t)
	r.checkOnce(t, "a", "b")
}

func TestSecondConsumerWithOneInstanceIDEndsTheFirst(t *testing.T) {
	r := newRig(t, 1)
	static := func(o *Options) { o.Membership.instanceID = "one" }
	first := r.start(t, r.work(1, nil), static)
	r.UntilMembers(t, r.group, 1, r.topic)
	second := r.start(t, r.work(1, nil), static)
	kafkatest.Receive(t, first.done)
	if first.err == nil || !strings.Contains(first.err.Error(), `Static("one")`) {
		t.Errorf("Run: %v", first.err)
	}
	r.send(t, 0, "a")
	r.untilStored(t, 0, 1)
	second.stop(t)
}

func TestRunThatCannotBeginUnregistersItsMetrics(t *testing.T) {
	r := newRig(t, 1)
	reg := prometheus.NewRegistry() // the rig's registerer keeps metrics
	m := r.start(t, r.work(1, nil), func(o *Options) { o.Routes[0].Scope, o.Telemetry.Registerer = "mine", reg })
	r.UntilMembers(t, r.group, 1, r.topic)
	m.stop(t)
	other := r.start(t, r.work(1, nil), func(o *Options) {
		o.Group, o.Routes[0].Scope, o.Telemetry.Registerer = "another", "mine", reg
	})
	kafkatest.Receive(t, other.done)
	if !errors.Is(other.err, ErrScopeShared) {
		t.Errorf("Run: %v", other.err)
	}
	for _, group := range []string{r.group, "another"} {
		o := r.options(r.work(1, nil))
		o.Group, o.Telemetry.Registerer = group, reg
		if _, err := New(r.eng, o); err != nil {
			t.Errorf("group %s: the next consumer cannot use the registry: %v", group, err)
		}
	}
}

func TestRunThatIsEndedBeforeItBeginsIsNoFailure(t *testing.T) {
	c, err := New(memEngine(t), someOptions())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestConsumerLeavesNoGoroutines(t *testing.T) {
	kafkatest.NoGoroutines(t, "hapax/kafkaadapter.(*", "franz-go/pkg/kgo")
	r := newRig(t, 2)
	r.send(t, 0, "a")
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 1)
	m.stop(t)
	if got := r.handledIDs(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("handled %q", got)
	}
}

func TestRunReportsThatItsClientHasEnded(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	ctx, end := context.WithCancel(context.Background())
	defer end()
	m := r.start(t, r.work(1, nil), func(o *Options) { o.Client = append(o.Client, kgo.WithContext(ctx)) })
	r.untilStored(t, 0, 1)
	end()
	kafkatest.Receive(t, m.done)
	if !errors.Is(m.err, kgo.ErrClientClosed) {
		t.Errorf("Run: %v", m.err)
	}
}
