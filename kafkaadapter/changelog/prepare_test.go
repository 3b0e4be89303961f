package changelog

import (
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func TestPreparedTopicIsAccepted(t *testing.T) {
	b, c, topic := preparedTopic(t, kafkatest.Options{}, 3)
	for _, again := range []*Client{c, connect(t, b, Options{})} {
		if err := again.Prepare(t.Context(), topic, 3); err != nil {
			t.Error(err)
		}
	}
}

func TestReplicasMustBeInSync(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{Nodes: 3})
	b.Cluster(t)
	topic := kafkatest.Name(t)
	if err := connect(t, b, Options{Replication: 3}).Prepare(t.Context(), topic, 1); err != nil {
		t.Error(err)
	}
}

// good are the settings that Prepare demands.
func good() map[string]string {
	return map[string]string{
		"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "LogAppendTime",
		"min.insync.replicas": "1", "unclean.leader.election.enable": "false", "max.message.bytes": "1048588",
	}
}

func TestWrongSettingsAreNamed(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	c := connect(t, b, Options{Replication: 1})
	if err := c.Prepare(t.Context(), b.CreateTopic(t, 2, good()), 2); err != nil {
		t.Fatalf("good settings: %v", err)
	}
	for _, wrong := range []struct{ name, value string }{
		{"cleanup.policy", "compact"}, {"cleanup.policy", "compact,delete"}, {"retention.ms", "604800000"}, {"retention.bytes", "1000000"},
		{"message.timestamp.type", "CreateTime"}, {"unclean.leader.election.enable", "true"}, {"max.message.bytes", "1000000"},
	} {
		if !b.Real() && wrong.name == "unclean.leader.election.enable" {
			continue // it does not know this setting
		}
		settings := good()
		settings[wrong.name] = wrong.value
		err := c.Prepare(t.Context(), b.CreateTopic(t, 2, settings), 2)
		if !errors.Is(err, ErrSetting) || !strings.Contains(err.Error(), wrong.name+" is \""+wrong.value) || strings.Count(err.Error(), "must be") != 1 {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}

func TestSettingsDependOnTheReplicas(t *testing.T) {
	for _, x := range []struct {
		replicas int
		insync   string
		ok       bool
	}{{1, "1", true}, {2, "1", false}, {3, "1", false}, {3, "2", true}, {3, "3", true}, {3, "", false}} {
		for _, s := range settings(x.replicas) {
			if s.name == "min.insync.replicas" && s.is(x.insync) != x.ok {
				t.Errorf("%+v", x)
			}
		}
	}
}

// Partition 0 has fewer replicas than another one, as after a reassignment.
func TestSettingsDependOnTheMostReplicas(t *testing.T) {
	topic := &kmsg.MetadataResponseTopic{Partitions: []kmsg.MetadataResponseTopicPartition{{Replicas: []int32{1}}, {Replicas: []int32{1, 2, 3}}, {Replicas: []int32{1, 2}}}}
	if got := mostReplicas(topic); got != 3 {
		t.Errorf("%d replicas", got)
	}
}

func TestTopicThatCannotBeUsedIsAnError(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	missing := kafkatest.Name(t)
	if err := connect(t, b, Options{}).Prepare(t.Context(), missing, 2); !errors.Is(err, ErrNoTopic) {
		t.Errorf("a missing topic: %v", err)
	}
	if err := connect(t, b, Options{Replication: 1}).Prepare(t.Context(), b.CreateTopic(t, 3, good()), 2); !errors.Is(err, ErrPartitions) {
		t.Errorf("another number of partitions: %v", err)
	}
	if err := connect(t, b, Options{Replication: 1}).Prepare(t.Context(), "no/topic", 2); b.Real() && err == nil {
		t.Error("an invalid name is accepted")
	}
}

func TestMissingRightsAreNamed(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	cluster := b.Cluster(t)
	topic := b.CreateTopic(t, 2, good())
	for _, x := range []struct {
		key   kmsg.Key
		topic string
		err   *kerr.Error
		want  error
		says  string
	}{
		{kmsg.DescribeConfigs, topic, kerr.TopicAuthorizationFailed, ErrPermission, "DESCRIBE_CONFIGS"},
		{kmsg.Metadata, topic, kerr.TopicAuthorizationFailed, ErrPermission, ""},
		{kmsg.CreateTopics, "absent", kerr.TopicAuthorizationFailed, ErrPermission, "Create"},
		{kmsg.CreateTopics, "absent", kerr.ClusterAuthorizationFailed, ErrPermission, "Create"},
		{kmsg.CreateTopics, "absent", kerr.PolicyViolation, ErrSetting, "refuses to create"},
		{kmsg.CreateTopics, "absent", kerr.InvalidConfig, ErrSetting, "refuses to create"},
	} {
		fault := kfake.Fault{Keys: []kmsg.Key{x.key}, Err: x.err, Count: -1}
		if x.key == kmsg.DescribeConfigs {
			fault.Resource = x.topic
		} else {
			fault.Topic = x.topic
		}
		refusing := cluster.Fault(fault)
		err := connect(t, b, Options{Replication: 1}).Prepare(t.Context(), x.topic, 2)
		if !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%+v: %v", x, err)
		}
		refusing.Remove()
	}
}

func TestRightsOfTheTopicAreChecked(t *testing.T) {
	p := prepared{topic: "orders"}
	all := int32(1<<kmsg.ACLOperationRead | 1<<kmsg.ACLOperationWrite | 1<<kmsg.ACLOperationDescribe | 1<<kmsg.ACLOperationDescribeConfigs)
	for ops, missing := range map[int32]string{
		all: "", -1 << 31: "", all &^ (1 << kmsg.ACLOperationWrite): "WRITE", all &^ (1 << kmsg.ACLOperationRead): "READ", 1 << kmsg.ACLOperationDescribe: "READ, WRITE, DESCRIBE_CONFIGS",
	} {
		err := p.checkRights(&kmsg.MetadataResponseTopic{AuthorizedOperations: ops})
		if (err == nil) != (missing == "") || err != nil && (!errors.Is(err, ErrPermission) || !strings.HasSuffix(err.Error(), ": "+missing)) {
			t.Errorf("%b: %v", ops, err)
		}
	}
}

// Two members create the topic at the same time, and brokers are not ready at first.
func TestTopicOfAnotherMemberIsTaken(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	cluster := b.Cluster(t)
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.InvalidReplicationFactor})
	topic := kafkatest.Name(t)
	done := make(chan error, 4)
	for range cap(done) {
		c := connect(t, b, Options{Replication: 1})
		go func() { done <- c.Prepare(t.Context(), topic, 2) }()
	}
	for range cap(done) {
		if err := kafkatest.Receive(t, done); err != nil {
			t.Error(err)
		}
	}
}

func TestOptionsThatBreakTheLogAreRefused(t *testing.T) {
	for _, o := range []kgo.Opt{
		kgo.DisableIdempotentWrite(), kgo.AllowIdempotentProduceCancellation(), kgo.TransactionalID("x"), kgo.ProducerOnDataLossDetected(func(string, int32) {}),
		kgo.ManualFlushing(), kgo.DefaultProduceTopicAlways(), kgo.AllowAutoTopicCreation(),
	} {
		if _, err := New([]kgo.Opt{kgo.SeedBrokers("127.0.0.1:1"), o}, Options{}); !errors.Is(err, ErrOption) {
			t.Errorf("%v: %v", o, err)
		}
	}
	for _, o := range []Options{{Replication: -1}, {Replication: 1 << 20}} {
		if _, err := New([]kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}, o); !errors.Is(err, ErrOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	c, err := New([]kgo.Opt{kgo.SeedBrokers("127.0.0.1:1"), kgo.RequiredAcks(kgo.LeaderAck()), kgo.RecordRetries(1), kgo.DisableIdempotentWrite()}, Options{})
	if err == nil {
		c.Close()
		t.Error("accepted")
	}
}
