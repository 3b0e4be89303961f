package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// commitTime bounds one commit to Kafka.
const commitTime = 5 * time.Second

// A committer commits the store's offsets to Kafka under the group.
type committer struct {
	shared     *shared
	parts      *assignments
	committing chan struct{} // full while offsets are committed
}

// commitLoop commits the store's offsets to Kafka.
func (c *committer) commitLoop(ctx context.Context) {
	t := time.NewTicker(c.shared.opt.Membership.CommitInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		_ = c.commit(ctx, c.parts.all, commitTime) // it logs its error
	}
}

// commit commits the store's offsets to Kafka, with the store's identity. After an error, which is
// logged, Kafka may lack some of them; the next commit tries again. Commits run one at a time. The
// wait for an earlier commit counts toward the limit; the client's own lock would ignore the limit.
// The partitions are determined after that wait, so that one that has been revoked meanwhile is left
// out: it may have another owner, which commits for it.
func (c *committer) commit(ctx context.Context, which func() []*partition, limit time.Duration) error {
	if changed, _, _ := pending(which()); len(changed) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	failed := c.commitPending(ctx, which)
	if failed != nil && (ctx.Err() == nil || !errors.Is(failed, context.Canceled)) {
		c.shared.throttled(c.shared.opt.Telemetry.Logger.Warn, "committing to Kafka failed; the offsets are safe in the store, and the commit is retried", topicPartition{},
			"group", c.shared.opt.Group, "error", failed)
	}
	return failed
}

func (c *committer) commitPending(ctx context.Context, which func() []*partition) error {
	select {
	case c.committing <- struct{}{}:
		defer func() { <-c.committing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	changed, offsets, identities := pending(which())
	if len(changed) == 0 {
		return nil
	}
	return c.commitTo(ctx, changed, offsets, identities)
}

// these is an argument of commit for given partitions.
func these(all ...*partition) func() []*partition { return func() []*partition { return all } }

// pending returns the partitions whose offsets are not committed to Kafka, with the offsets and the
// metadata of their commits.
func pending(all []*partition) (changed []*partition, offsets map[string]map[int32]kgo.EpochOffset, identities map[topicPartition]string) {
	offsets, identities = make(map[string]map[int32]kgo.EpochOffset), make(map[topicPartition]string)
	for _, p := range all {
		at, self, ok := p.offsets.pending()
		if !ok {
			continue
		}
		changed = append(changed, p)
		if offsets[p.pos.Topic] == nil {
			offsets[p.pos.Topic] = make(map[int32]kgo.EpochOffset)
		}
		offsets[p.pos.Topic][p.pos.Partition] = at
		identities[p.tp()] = self
	}
	return changed, offsets, identities
}

// commitTo replaces the group's offsets, with the store's identity.
func (c *committer) commitTo(ctx context.Context, changed []*partition, offsets map[string]map[int32]kgo.EpochOffset, identities map[topicPartition]string) (failed error) {
	if c.shared.opt.Membership.isPinned() {
		return c.commitPinned(ctx, changed, offsets, identities)
	}
	put := func(req *kmsg.OffsetCommitRequest) error {
		putIdentities(req, identities)
		return nil
	}
	c.shared.brokers.client.CommitOffsetsSync(kgo.PreCommitFnContext(ctx, put), offsets,
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
			if failed = err; err == nil {
				failed = commitError(resp)
			} else {
				doubtCommits(changed)
			}
		})
	if failed == nil {
		for _, p := range changed {
			p.offsets.committed(offsets[p.pos.Topic][p.pos.Partition], identities[p.tp()])
		}
	}
	return failed
}

// doubtCommits is called after a commit that the broker has not answered.
func doubtCommits(all []*partition) {
	for _, p := range all {
		p.offsets.unanswered()
	}
}

// putIdentities adds the store's identity to each offset.
func putIdentities(req *kmsg.OffsetCommitRequest, identities map[topicPartition]string) {
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			p := &req.Topics[i].Partitions[j]
			p.Metadata = kmsg.StringPtr(identities[topicPartition{req.Topics[i].Topic, p.Partition}])
		}
	}
}

func commitError(resp *kmsg.OffsetCommitResponse) error {
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			if err := kerr.ErrorForCode(resp.Topics[i].Partitions[j].ErrorCode); err != nil {
				return fmt.Errorf("%s/%d: %w", resp.Topics[i].Topic, resp.Topics[i].Partitions[j].Partition, err)
			}
		}
	}
	return nil
}

// commitPinned commits offsets under the group. If another process has changed the commit of a
// partition, the partition is left out and looked up again: it stops if the commit belongs to
// another store.
func (c *committer) commitPinned(ctx context.Context, changed []*partition, offsets map[string]map[int32]kgo.EpochOffset, identities map[topicPartition]string) error {
	commits, err := c.shared.brokers.groupCommits(ctx, c.shared.opt.Group)
	if err != nil {
		return err
	}
	var changes error
	var own []*partition
	req := make(kadm.Offsets)
	for _, p := range changed {
		if p.offsets.replaced(commits[p.tp()], identities[p.tp()]) {
			c.parts.pause(p)
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
	resp, err := c.shared.brokers.admin.CommitOffsets(ctx, c.shared.opt.Group, req)
	if err != nil {
		doubtCommits(own)
		return err
	}
	if err := resp.Error(); err != nil {
		return err
	}
	for _, p := range own {
		p.offsets.committed(offsets[p.pos.Topic][p.pos.Partition], identities[p.tp()])
	}
	return changes
}
