package changelog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// segmentBytes is the size of the files of a topic that Prepare creates. What is removed from a log frees the
// disk in units of a file.
const segmentBytes = 64 << 20

// Prepare creates the topic if it is missing and Options.Replication is set, and checks that it has that many
// partitions, the settings that the log needs, and that the application may use it. Its errors are ErrNoTopic,
// ErrPartitions, ErrSetting and ErrPermission, or that of ctx with the last answer of the brokers.
func (c *Client) Prepare(ctx context.Context, topic string, partitions int) error {
	prepared := prepared{client: c, topic: topic, partitions: partitions}
	return c.until(ctx, "preparing changelog "+topic, func() error { return prepared.try(ctx) })
}

type prepared struct {
	client     *Client
	topic      string
	partitions int
	created    time.Time // when it was created, zero if it was there
}

func (p *prepared) try(ctx context.Context) error {
	t, err := p.describe(ctx)
	if errors.Is(err, kerr.UnknownTopicOrPartition) && p.client.replication > 0 && p.created.IsZero() {
		if err := p.create(ctx); err != nil {
			return err
		}
		p.created = time.Now()
		t, err = p.describe(ctx)
	}
	if err == nil {
		err = p.checkPartitions(t)
	}
	if err == nil {
		err = p.checkRights(t)
	}
	if err == nil {
		err = p.checkSettings(ctx, t)
	}
	return err
}

func (p *prepared) describe(ctx context.Context) (*kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &p.topic
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, p.client.reader)
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 {
		return nil, kerr.UnknownTopicOrPartition
	}
	t := &resp.Topics[0]
	if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
		return nil, err
	}
	for i := range t.Partitions {
		if t.Partitions[i].Leader < 0 {
			return nil, kerr.LeaderNotAvailable
		}
	}
	return t, nil
}

// create creates the topic. It is no error if another member was faster.
func (p *prepared) create(ctx context.Context) error {
	configs := make(map[string]*string)
	for name, value := range map[string]string{
		"cleanup.policy":                 "delete",
		"retention.ms":                   "-1",
		"retention.bytes":                "-1",
		"message.timestamp.type":         "LogAppendTime",
		"min.insync.replicas":            strconv.Itoa(min(p.client.replication, 2)),
		"unclean.leader.election.enable": "false",
		"segment.bytes":                  strconv.Itoa(segmentBytes),
	} {
		configs[name] = &value
	}
	made, err := kadm.NewClient(p.client.reader).CreateTopic(ctx, int32(p.partitions), int16(p.client.replication), configs, p.topic)
	switch {
	case errors.Is(err, kerr.TopicAlreadyExists):
		return nil
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return fmt.Errorf("%w: Create is needed to create topic %s: %w", ErrPermission, p.topic, err)
	case errors.Is(err, kerr.InvalidConfig), errors.Is(err, kerr.PolicyViolation):
		return fmt.Errorf("%w: the cluster refuses to create topic %s: %s: create it yourself with a policy of the cluster that allows it: %w", ErrSetting, p.topic, made.ErrMessage, err)
	case errors.Is(err, kerr.InvalidTopicException), errors.Is(err, kerr.InvalidPartitions):
		return fmt.Errorf("%w: the name or the number of partitions is refused: %s: %w", ErrSetting, made.ErrMessage, err)
	}
	return err // InvalidReplicationFactor, too: brokers may be about to start
}

func (p *prepared) checkPartitions(t *kmsg.MetadataResponseTopic) error {
	if n := len(t.Partitions); n != p.partitions {
		return fmt.Errorf("%w: topic %s has %d partitions, the source has %d", ErrPartitions, p.topic, n, p.partitions)
	}
	return nil
}

func (p *prepared) checkRights(t *kmsg.MetadataResponseTopic) error {
	if t.AuthorizedOperations <= 0 {
		return nil // the broker does not say
	}
	var missing []string
	for _, op := range []kmsg.ACLOperation{kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe, kmsg.ACLOperationDescribeConfigs} {
		if t.AuthorizedOperations&(1<<op) == 0 {
			missing = append(missing, op.String())
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: topic %s: %s", ErrPermission, p.topic, strings.Join(missing, ", "))
	}
	return nil
}

// checkSettings compares the settings of the topic with what the log needs.
func (p *prepared) checkSettings(ctx context.Context, t *kmsg.MetadataResponseTopic) error {
	described, err := kadm.NewClient(p.client.reader).DescribeTopicConfigs(ctx, p.topic)
	var configs kadm.ResourceConfig
	if err == nil {
		configs, err = described.On(p.topic, nil)
	}
	if err == nil {
		err = configs.Err
	}
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		return fmt.Errorf("%w: topic %s: DESCRIBE_CONFIGS: %w", ErrPermission, p.topic, err)
	}
	if err != nil {
		return err
	}
	has := make(map[string]string)
	for _, c := range configs.Configs {
		has[c.Key] = c.MaybeValue()
	}
	var wrong []string
	for _, s := range settings(mostReplicas(t)) {
		value, said := has[s.name]
		if !said && s.optional || s.is(value) {
			continue
		}
		wrong = append(wrong, fmt.Sprintf("%s is %q and must be %s", s.name, value, s.want))
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w: topic %s: %s", ErrSetting, p.topic, strings.Join(wrong, "; "))
	}
	return nil
}

// mostReplicas is the number of replicas of the partition that has most: others may be about to get theirs.
func mostReplicas(t *kmsg.MetadataResponseTopic) (most int) {
	for i := range t.Partitions {
		most = max(most, len(t.Partitions[i].Replicas))
	}
	return most
}

// A setting is one that a topic must have.
type setting struct {
	name     string
	want     string
	is       func(value string) bool
	optional bool // a broker may not know it
}

func settings(replicas int) []setting {
	exactly := func(want string) func(string) bool { return func(value string) bool { return value == want } }
	atLeast := func(least int) func(string) bool {
		return func(value string) bool { n, err := strconv.Atoi(value); return err == nil && n >= least }
	}
	insync := min(replicas, 2)
	return []setting{
		{"cleanup.policy", "delete: a compacted log has gaps", exactly("delete"), false},
		{"retention.ms", "-1: the log is needed from its start", exactly("-1"), false},
		{"retention.bytes", "-1: the log is needed from its start", exactly("-1"), false},
		{"message.timestamp.type", "LogAppendTime: brokers reject records whose sender's clock is wrong", exactly("LogAppendTime"), false},
		{"min.insync.replicas", fmt.Sprintf("at least %d of the %d replicas: an acknowledged record must not be on one machine only", insync, replicas), atLeast(insync), false},
		{"unclean.leader.election.enable", "false: it loses acknowledged records", exactly("false"), true},
		{"max.message.bytes", fmt.Sprintf("at least %d", maxBatchBytes), atLeast(maxBatchBytes), false},
	}
}
