package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
)

// commitTime bounds one commit to Kafka.
const commitTime = 5 * time.Second

// commitMost is the number of partitions of one commit. A broker stores a commit as one batch of
// records, whose size is limited.
const commitMost = 1000

// A committer commits the store's offsets to Kafka under the group.
type committer struct {
	shared     *shared
	parts      *assignments
	committing chan struct{} // full while a commit is sent
	signatures brokers.Batcher[*partition, struct{}]
}

func newCommitter(s *shared, parts *assignments) *committer {
	return &committer{shared: s, parts: parts, committing: make(chan struct{}, 1), signatures: brokers.Batcher[*partition, struct{}]{Most: commitMost}}
}

// commitLoop commits the store's offsets to Kafka.
func (c *committer) commitLoop(ctx context.Context) {
	t := time.NewTicker(c.shared.opt.commitInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		_ = c.commit(ctx, c.parts.all, time.Minute) // it logs its error
	}
}

// commit commits the store's offsets to Kafka, with the store's identity. After an error, which is
// logged, Kafka may lack some of them; the next commit tries again. Commits are sent one at a time.
// The wait for an earlier one counts toward the limit; the client's own lock would ignore the
// limit. The partitions are determined after that wait, so that one that has been revoked meanwhile
// is left out: it may have another owner, which commits for it.
func (c *committer) commit(ctx context.Context, which func() []*partition, limit time.Duration) (failed error) {
	if len(pending(which())) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tried := make(map[*partition]bool)
	for more := true; more; {
		errs, err := c.commitSome(ctx, func() []*partition {
			untried := slices.DeleteFunc(pending(which()), func(p *partition) bool { return tried[p] })
			more = len(untried) > commitMost
			untried = untried[:min(len(untried), commitMost)]
			for _, p := range untried {
				tried[p] = true
			}
			return untried
		})
		if failed = errors.Join(failed, oneOf(errs), err); err != nil {
			break
		}
	}
	if failed != nil && (ctx.Err() == nil || !errors.Is(failed, context.Canceled)) {
		c.report(failed)
	}
	return failed
}

// oneOf returns one of the errors: they are often the same for many partitions.
func oneOf(errs map[*partition]error) error {
	for p, err := range errs {
		return fmt.Errorf("%s: %w", p.tp(), err)
	}
	return nil
}

func (c *committer) report(failed error) {
	c.shared.throttled(c.shared.opt.Telemetry.Logger.Warn, "committing to Kafka failed; the offsets are safe in the store, and the commit is retried", topicPartition{},
		"group", c.shared.opt.Group, "error", failed)
}

// sign commits the offset of one partition. Partitions that are signed at the same time share a
// commit; each gets its own error.
func (c *committer) sign(ctx context.Context, p *partition) error {
	_, err := c.signatures.Ask(ctx, p, c.signAll)
	return err
}

func (c *committer) signAll(batch []*brokers.Question[*partition, struct{}]) {
	errs, err := c.commitSome(context.Background(), func() []*partition {
		var all []*partition
		for _, q := range batch {
			if !q.Ask.isEnding() {
				all = append(all, q.Ask)
			}
		}
		return all
	})
	if err != nil || len(errs) > 0 {
		c.report(errors.Join(err, oneOf(errs)))
	}
	for _, q := range batch {
		if q.Err = errs[q.Ask]; err != nil {
			q.Err = err
		}
	}
}

// commitSome sends one commit, of partitions that are determined when no other is sent. It returns
// the errors of partitions, or the one of the whole commit.
func (c *committer) commitSome(ctx context.Context, which func() []*partition) (errs map[*partition]error, err error) {
	select {
	case c.committing <- struct{}{}:
		defer func() { <-c.committing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, commitTime)
	defer cancel()
	k := newCommits(which())
	switch {
	case len(k) == 0:
		return nil, nil
	case c.shared.opt.Membership.isPinned():
		return c.commitPinned(ctx, k)
	}
	return c.commitAsMember(ctx, k)
}

// these is an argument of commit for given partitions.
func these(all ...*partition) func() []*partition { return func() []*partition { return all } }

// pending returns the partitions whose offsets are not committed to Kafka.
func pending(all []*partition) (changed []*partition) {
	for _, p := range all {
		if _, _, ok := p.offsets.pending(); ok {
			changed = append(changed, p)
		}
	}
	return changed
}

// commits are the offsets that one commit stores, with the store's identity.
type commits map[*partition]pendingCommit

type pendingCommit struct {
	at   kgo.EpochOffset
	self string
}

func newCommits(all []*partition) commits {
	k := make(commits, len(all))
	for _, p := range all {
		if at, self, ok := p.offsets.pending(); ok {
			k[p] = pendingCommit{at, self}
		}
	}
	return k
}

// done records the offsets that Kafka has.
func (k commits) done(errs map[*partition]error) {
	for p, c := range k {
		if errs[p] == nil {
			p.offsets.committed(c.at, c.self)
		}
	}
}

// markUnanswered records that the broker has not answered the commit.
func (k commits) markUnanswered() {
	for p := range k {
		p.offsets.unanswered()
	}
}

// commitAsMember commits through the group's client.
func (c *committer) commitAsMember(ctx context.Context, k commits) (errs map[*partition]error, err error) {
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	parts := make(map[topicPartition]*partition, len(k))
	for p, commit := range k {
		if offsets[p.pos.Topic] == nil {
			offsets[p.pos.Topic] = make(map[int32]kgo.EpochOffset)
		}
		offsets[p.pos.Topic][p.pos.Partition] = commit.at
		parts[p.tp()] = p
	}
	identify := func(req *kmsg.OffsetCommitRequest) error {
		for i := range req.Topics {
			for j := range req.Topics[i].Partitions {
				rp := &req.Topics[i].Partitions[j]
				rp.Metadata = kmsg.StringPtr(k[parts[topicPartition{req.Topics[i].Topic, rp.Partition}]].self)
			}
		}
		return nil
	}
	c.shared.brokers.client.CommitOffsetsSync(kgo.PreCommitFnContext(ctx, identify), offsets,
		func(_ *kgo.Client, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, failed error) {
			if err = failed; failed == nil {
				errs = commitErrors(req, resp, parts)
			}
		})
	if err != nil {
		k.markUnanswered()
		return nil, err
	}
	k.done(errs)
	return errs, nil
}

// errNotAnswered is the error of a partition that the answer to a commit leaves out.
var errNotAnswered = errors.New("the broker's answer to the commit leaves the partition out")

// commitErrors returns the errors of partitions. From version 10 on, an answer has the id of a topic in
// place of its name; the client adds the name unless the group has changed since the request.
func commitErrors(req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, parts map[topicPartition]*partition) map[*partition]error {
	names := make(map[[16]byte]string, len(req.Topics))
	for i := range req.Topics {
		names[req.Topics[i].TopicID] = req.Topics[i].Topic
	}
	errs := make(map[*partition]error)
	for _, p := range parts {
		errs[p] = errNotAnswered
	}
	for i := range resp.Topics {
		topic := resp.Topics[i].Topic
		if topic == "" {
			topic = names[resp.Topics[i].TopicID]
		}
		for _, rp := range resp.Topics[i].Partitions {
			p := parts[topicPartition{topic, rp.Partition}]
			if p == nil {
				continue // those that it belongs to are not answered
			}
			if errs[p] = kerr.ErrorForCode(rp.ErrorCode); errs[p] == nil {
				delete(errs, p)
			}
		}
	}
	return errs
}

// commitPinned commits offsets under the group. If another process has changed the commit of a
// partition, the partition is left out and looked up again: it stops if the commit belongs to
// another store.
func (c *committer) commitPinned(ctx context.Context, k commits) (errs map[*partition]error, err error) {
	now, err := c.shared.brokers.ask.Commits(ctx, c.shared.opt.Group)
	if err != nil {
		return nil, err
	}
	errs = make(map[*partition]error)
	req := make(kadm.Offsets)
	for p, commit := range k {
		if p.offsets.replaced(now[p.tp().asked()], commit.self) {
			c.parts.pause(p)
			p.queue.Abort(errCommitChanged)
			errs[p] = errCommitChanged
			delete(k, p)
			continue
		}
		req.Add(kadm.Offset{Topic: p.pos.Topic, Partition: p.pos.Partition, At: commit.at.Offset, LeaderEpoch: commit.at.Epoch, Metadata: commit.self})
	}
	if len(req) == 0 {
		return errs, nil
	}
	resp, err := c.shared.brokers.admin.CommitOffsets(ctx, c.shared.opt.Group, req)
	if err != nil {
		k.markUnanswered()
		return nil, err
	}
	for p := range k {
		if r, found := resp.Lookup(p.pos.Topic, p.pos.Partition); found && r.Err != nil {
			errs[p] = r.Err
		}
	}
	k.done(errs)
	return errs, nil
}
