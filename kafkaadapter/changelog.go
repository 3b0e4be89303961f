package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter/changelog"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/tenure"
)

// Changelog gives each partition a store and an engine of its own, whose truth is a partition of a
// Kafka topic, the changelog; what is on disk is a copy that may be lost. Any number of processes can
// then be members of the group, without volumes: a member that gets a partition restores its store from
// the changelog.
//
// Claims and state are the partition's own: copies of one event must reach one partition, as they do when
// the record's key decides it, and a handler sees the state of its record's partition only. The number of
// a topic's partitions therefore must not change: each log keeps it, and if it has changed, the topic's
// partitions stop with ErrPartitionsChanged.
//
// The changelog is never trimmed in this version: it grows with every batch.
type Changelog struct {
	// Copies opens the local copy of a partition of a source topic, which may use that much memory:
	// pebble.Copies(dir, pebble.Options{}) or bolt.Copies. No other process or consumer uses dir. Required.
	Copies func(topic string, partition int32, memory int64) storage.Copies
	// Memory is that of the copies of this process together. Each topic has an equal part, and each of its
	// partitions an equal part of that, so that the process may own all of them. 0 = DefaultMemory.
	Memory int64
	// Topic returns the name of the changelog of a source topic, which no other group and no other source has.
	// nil: <group>.<source>.changelog. Set it if two of these names are equal, as for the group a with the
	// source b.c and the group a.b with the source c: one of the two stops with ErrChangelogShared.
	Topic func(source string) string
	// Replication is the number of replicas of changelogs that are missing and are created; 0: they
	// must exist. See package changelog for the settings and rights that they need.
	Replication int
	// Engine returns the options of a partition's engine, whose limits are for that partition alone. They
	// must be the same in all members, except for what only observes. nil: the defaults.
	Engine func(position engine.OffsetKey) engine.Options
	// OnOwned is called when this member has become the owner of a partition and may use its store, before
	// it handles records, with the engine, in a goroutine of its own: for what runs beside the handlers, such as an outbox relay. ctx ends with
	// the ownership, and the member gives the partition up when OnOwned has returned, as with handlers
	// at the latest after DrainTimeout. When the engine was opened again, OnOwned is called again.
	OnOwned func(ctx context.Context, position engine.OffsetKey, eng *engine.Engine)

	logs tenure.Logs // set by tests
}

// DefaultMemory is the memory of the copies of a process, unless Changelog.Memory is set.
const DefaultMemory = 512 << 20

// ErrNotWithChangelog means that an option cannot be used together with Options.Changelog.
var ErrNotWithChangelog = errors.New("hapax: not possible with Options.Changelog, where each partition has a store of its own")

// ErrChangelogShared means that a changelog belongs to another group or source topic. The error names both. The
// partition stops until it is assigned again; its changelog is unchanged, and its owner continues.
var ErrChangelogShared = errors.New("hapax: the changelog belongs to another group or source topic: let Options.Changelog.Topic return a topic of its own for each group and source")

// ErrNotOwned is returned by Consumer.Engine for a partition that this member does not own.
var ErrNotOwned = errors.New("hapax: this consumer does not own the partition")

// clone returns the options with their defaults.
func (c *Changelog) clone() *Changelog {
	if c == nil {
		return nil
	}
	own := *c
	defaulted(&own.Memory, DefaultMemory)
	return &own
}

// check returns an error if the changelog's options, or others of the consumer, cannot be used.
func (c *Changelog) check(o *Options) error {
	switch {
	case c == nil:
		return nil
	case c.Copies == nil:
		return fmt.Errorf("%w: Options.Changelog.Copies is nil: set pebble.Copies(dir, pebble.Options{})", ErrOption)
	case c.Memory < 0:
		return fmt.Errorf("%w: Options.Changelog.Memory is %d: give 0 or more", ErrOption, c.Memory)
	case c.Replication < 0:
		return fmt.Errorf("%w: Options.Changelog.Replication is %d: give 0 or more", ErrOption, c.Replication)
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w: %s", ErrOption, ErrNotWithChangelog, fmt.Sprintf(format, args...))
	}
	switch {
	case o.Membership.isPinned():
		return refuse("Options.Membership is Pinned: use a member of a group")
	case o.ReopenStore != nil:
		return refuse("Options.ReopenStore is set: the adapter opens the stores")
	}
	if err := c.checkTopics(o); err != nil {
		return err
	}
	scopes := make(map[string]string) // their topics
	for i := range o.Routes {
		r := &o.Routes[i]
		switch {
		case r.SharedScope:
			return refuse("Options.Routes[%d].SharedScope is set", i)
		case r.Policies[Failed] == Process:
			return refuse("Options.Routes[%d].Policies[Failed] is Process", i)
		}
		for _, topic := range r.Topics {
			if other, found := scopes[r.Scope]; found && !r.Identify.PerTopic {
				return refuse("the topics %s and %s have the scope %q, but share no claims: give them routes with different scopes, or set Identify.PerTopic if their ids are unique within their topic only", other, topic, r.Scope)
			}
			scopes[r.Scope] = topic
		}
	}
	return nil
}

// checkTopics rejects changelogs that are not topics of their own.
func (c *Changelog) checkTopics(o *Options) error {
	taken := make(map[string]string) // the use of each topic
	for _, letters := range o.letterTopics() {
		taken[letters] = "a dead-letter topic"
	}
	for _, source := range o.topics() {
		taken[source] = "consumed by this group"
	}
	for _, source := range o.topics() {
		log := c.topic(o.Group, source)
		if !topicName.MatchString(log) {
			return fmt.Errorf("%w: the changelog of topic %q is %q, which is not the name of a topic: set Options.Changelog.Topic", ErrOption, source, log)
		}
		if use, found := taken[log]; found {
			return fmt.Errorf("%w: the changelog of topic %q is %q, which is %s: let Options.Changelog.Topic return a topic of its own for each source", ErrOption, source, log, use)
		}
		taken[log] = fmt.Sprintf("the changelog of topic %q", source)
	}
	return nil
}

// topic is the name of the changelog of a source topic.
func (c *Changelog) topic(group, source string) string {
	if c.Topic != nil {
		return c.Topic(source)
	}
	return strings.Join([]string{group, source, "changelog"}, ".")
}

// kafkaLogs has the logs of a client.
type kafkaLogs struct{ client *changelog.Client }

func (l kafkaLogs) Prepare(ctx context.Context, topic string, partitions int) error {
	return l.client.Prepare(ctx, topic, partitions)
}

func (l kafkaLogs) Log(topic string, partition int32) replica.Log {
	return l.client.Log(topic, partition)
}

func (l kafkaLogs) Close() { l.client.Close() }

// engineOptions are those of a partition's engine.
func (o *Options) engineOptions(topic string, partition int32) engine.Options {
	if f := o.Changelog.Engine; f != nil {
		return f(engine.OffsetKey{Group: o.Group, Topic: topic, Partition: partition})
	}
	return engine.Options{}
}
