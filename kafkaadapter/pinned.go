package kafkaadapter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// Pinned gives a consumer a fixed part of the partitions, with no rebalancing: of each topic those
// whose number modulo Of is Ordinal. Use it for several processes that each have a store on a
// volume of their own, as the pods of a StatefulSet have: Ordinal is the pod's ordinal, Of the
// number of replicas.
//
// An event is then a duplicate only of an event in the partitions of the same consumer. Producers
// have to send all copies of an event to one partition, as they do when the record's key decides
// it.
//
// Offsets are committed under Options.Group, for lag tools; no process may consume with that group
// as a member. The commit is read again before it is replaced: if a process with another store has
// committed for the partition, the partition stops with ErrForeignStore. Two processes with one
// ordinal therefore do not both continue.
type Pinned struct {
	Ordinal int // from 0
	Of      int // the number of consumers; 0: not pinned
}

// ErrPinnedChanged is returned by Run if the store was used with another Membership.Pinned.
// Partitions would move between stores that do not have each other's claims.
var ErrPinnedChanged = errors.New("hapax: Membership.Pinned has changed for this store, and partitions would move to stores without their claims: " +
	"use the numbers of before; or, to change the number of consumers, wait until the lag is 0, stop all of them, and start each with a new store " +
	"and Recovery.ForeignStore = TrustKafka: repeats of earlier events are then handled again")

func (m *Membership) isPinned() bool { return m.Pinned.Of != 0 }

// label names the consumer among those of its group in metrics.
func (m *Membership) label() string {
	if m.isPinned() {
		return strconv.Itoa(m.Pinned.Ordinal)
	}
	return m.InstanceID
}

func (s Pinned) has(partition int32) bool { return int(partition)%s.Of == s.Ordinal }

func (m *Membership) checkPinned() error {
	switch s := m.Pinned; {
	case s == Pinned{}:
		return nil
	case s.Of < 1 || s.Ordinal < 0 || s.Ordinal >= s.Of:
		return fmt.Errorf("%w: Options.Membership.Pinned is %d of %d: give an Ordinal from 0 to Of-1", ErrOption, s.Ordinal, s.Of)
	case m.InstanceID != "" || m.ServerSideAssignment:
		return fmt.Errorf("%w: Options.Membership.Pinned is set with InstanceID or ServerSideAssignment, which are for members of a group: leave them out", ErrOption)
	}
	return nil
}

// bindPinned makes sure that the store is used with the same part of the partitions as before.
func (c *Consumer) bindPinned(tx *engine.Tx) error {
	key := appendText(append([]byte(KeyPrefix), keyPinned), c.opt.Group)
	b, found, err := tx.Get(key)
	if err != nil {
		return err
	}
	now := c.opt.Membership.Pinned
	if !found {
		if !c.opt.Membership.isPinned() {
			return nil
		}
		return tx.Put(key, now.encode())
	}
	was, err := parsePinned(b)
	if err == nil && was != now {
		err = fmt.Errorf("%w (ordinal %d of %d before, %d of %d now)", ErrPinnedChanged, was.Ordinal, was.Of, now.Ordinal, now.Of)
	}
	return err
}

// encode: version 1 | ordinal u32 | of u32.
func (s Pinned) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{1}, uint32(s.Ordinal)), uint32(s.Of))
}

func parsePinned(b []byte) (Pinned, error) {
	if len(b) != 9 || b[0] != 1 {
		return Pinned{}, unknownForm("the pinned partitions", b)
	}
	return Pinned{int(binary.BigEndian.Uint32(b[1:])), int(binary.BigEndian.Uint32(b[5:]))}, nil
}

// pinInterval is the time between looks for partitions that were added.
const pinInterval = 10 * time.Second

// pinLoop assigns the consumer's part of the partitions, and those that are added later.
func (c *Consumer) pinLoop(ctx context.Context) {
	pause := c.opt.Backoff.Min
	for {
		err := c.pin(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := pinInterval
		if err != nil {
			c.throttled(c.opt.Telemetry.Logger.Warn, "the pinned partitions cannot be looked up; it is tried again", topicPartition{}, "group", c.opt.Group, "error", err)
			wait, pause = pause, min(2*pause, c.opt.Backoff.Max)
		} else {
			pause = c.opt.Backoff.Min
		}
		select {
		case <-ctx.Done():
			return
		case <-c.repin:
		case <-time.After(wait):
		}
	}
}

// pin begins the assignment of pinned partitions that have none.
func (c *Consumer) pin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	details, err := c.admin.ListTopics(ctx, c.opt.topics()...)
	if err != nil {
		return err
	}
	var added []topicPartition
	hook := make(map[string][]int32)
	for _, d := range details {
		if d.Err != nil {
			c.throttled(c.opt.Telemetry.Logger.Error, "a topic cannot be consumed; it is tried again", topicPartition{d.Topic, -1}, "topic", d.Topic, "error", d.Err)
			continue
		}
		for _, p := range d.Partitions.Sorted() {
			tp := topicPartition{d.Topic, p.Partition}
			if c.opt.Membership.Pinned.has(p.Partition) && c.partition(tp) == nil {
				added = append(added, tp)
				hook[tp.topic] = append(hook[tp.topic], tp.partition)
			}
		}
	}
	if len(added) == 0 {
		c.health.joined.Store(true)
		return nil
	}
	commits, err := c.groupCommits(ctx)
	if err != nil {
		return err
	}
	stored := c.stored(ctx, added)
	c.assigned(hook)
	for _, tp := range added {
		c.begin(newPartition(c, tp, commits[tp], stored[tp]))
	}
	return nil
}

// groupCommits returns what is committed under the group.
func (c *Consumer) groupCommits(ctx context.Context) (map[topicPartition]*commit, error) {
	all, err := c.admin.FetchOffsets(ctx, c.opt.Group)
	if err == nil {
		err = all.Error()
	}
	if errors.Is(err, kerr.GroupIDNotFound) { // nobody has committed yet
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up the offsets of group %s: %w", c.opt.Group, err)
	}
	commits := make(map[topicPartition]*commit)
	all.Each(func(o kadm.OffsetResponse) {
		if o.At >= 0 {
			commits[topicPartition{o.Topic, o.Partition}] = &commit{o.At, o.LeaderEpoch, o.Metadata}
		}
	})
	return commits, nil
}

// errCommitChanged says that another process has committed for a pinned partition: it is compared
// again.
var errCommitChanged = errors.New("hapax: another process has committed an offset for the partition")

// commitPinned commits offsets under the group. A partition whose commit is not the one that this
// consumer knows is left out, and looked up again: it stops if the commit is another store's.
func (c *Consumer) commitPinned(ctx context.Context, changed []*partition, offsets map[string]map[int32]kgo.EpochOffset, identities map[topicPartition]string) error {
	commits, err := c.groupCommits(ctx)
	if err != nil {
		return err
	}
	var changes error
	var own []*partition
	req := make(kadm.Offsets)
	for _, p := range changed {
		if p.offsets.replaced(commits[p.tp()], identities[p.tp()]) {
			c.client.PauseFetchPartitions(p.only())
			p.queue.abort(errCommitChanged)
			changes = errors.Join(changes, fmt.Errorf("%s: %w", p.tp(), errCommitChanged))
			continue
		}
		own = append(own, p)
		at := offsets[p.pos.Topic][p.pos.Partition]
		req.Add(kadm.Offset{Topic: p.pos.Topic, Partition: p.pos.Partition, At: at.Offset, LeaderEpoch: at.Epoch, Metadata: identities[p.tp()]})
	}
	if len(req) == 0 {
		return changes
	}
	resp, err := c.admin.CommitOffsets(ctx, c.opt.Group, req)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		return err
	}
	for _, p := range own {
		p.offsets.committed(offsets[p.pos.Topic][p.pos.Partition], identities[p.tp()])
	}
	return changes
}

// openPinned has the client fetch a pinned partition from an offset.
func (c *Consumer) openPinned(p *partition, at opening) {
	c.client.RemoveConsumePartitions(p.only())
	c.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{
		p.pos.Topic: {p.pos.Partition: kgo.NewOffset().At(at.offset).WithEpoch(-1)},
	})
}

// repinTopic forgets a topic that was created again, and assigns its partitions anew.
func (c *Consumer) repinTopic(topic string) {
	lost := make(map[string][]int32)
	for _, p := range c.partitions() {
		if p.pos.Topic == topic {
			lost[topic] = append(lost[topic], p.pos.Partition)
		}
	}
	c.client.PurgeTopicsFromConsuming(topic)
	c.revoked(lost)
	select {
	case c.repin <- struct{}{}:
	default:
	}
}
