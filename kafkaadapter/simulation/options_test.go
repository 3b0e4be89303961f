package simulation

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/telemetry"
)

// maxBatch is the maximum number of records in a batch, and so of the events of a partition that
// AtMostOnce may lose.
const maxBatch = 8

func (b *member) options() kafkaadapter.Options {
	w := b.w
	o := kafkaadapter.Options{
		Group:      group,
		Routes:     []kafkaadapter.Route{{Topics: []string{topic}}},
		Client:     w.client(b.wire.dial, append(w.pace.client(), kgo.ClientID(b.clientID()))...),
		Membership: kafkaadapter.Static("machine"),
		MaxBatch:   maxBatch,
		MaxBackoff: 20 * time.Millisecond,
		Recovery:   w.recovery,
		Telemetry:  telemetry.Options{Logger: w.logger.With("member", b.name)},
		OnStop:     b.stopped,
		OnRebalance: func(change kafkaadapter.Change, partitions map[string][]int32) {
			switch change {
			case kafkaadapter.Assigned:
				b.assigned(partitions)
			case kafkaadapter.Revoked:
				b.revoked(partitions)
			case kafkaadapter.Lost:
				b.lost(partitions)
			}
		},
	}
	if w.together {
		o.DrainTimeout, o.Membership = w.session/3, kafkaadapter.Membership{}
		if w.static {
			o.Membership = kafkaadapter.Static(b.name)
		}
		if w.serverSide {
			o.Membership = o.Membership.ServerSide()
		}
	}
	if w.of > 0 {
		o.Membership = kafkaadapter.Pinned(w.ordinal, w.of)
	}
	r := &o.Routes[0]
	if w.atMostOnce {
		r.Mode = kafkaadapter.AtMostOnce(b.handleOnce)
		r.Policies = kafkaadapter.RejectUnclaimable()
		return o
	}
	r.Mode = kafkaadapter.Transactional{Handle: b.handle, MaxAttempts: maxAttempts}
	r.DeadLetters = &deadletter.Options{}
	return o
}

// A pace is the list of durations in a simulation. In virtual time they cost nothing.
type pace struct {
	session  time.Duration // after this time, the group removes a member
	patience time.Duration // a machine with power that makes no progress for this time is stuck
	settle   time.Duration // the time for a machine that has handled all records
	between  time.Duration // the maximum pause of the director
	away     time.Duration // the maximum time without a network
	down     time.Duration // the usual time until the power returns
	longDown time.Duration // sometimes
}

// The shortest session that brokers accept is 6 s.
var (
	virtualTime = pace{session: 6 * time.Second, patience: 30 * time.Minute, settle: 10 * time.Second, between: 3 * time.Second, away: 18 * time.Second, down: 5 * time.Second, longDown: 5 * time.Hour}
	realTime    = pace{session: 3 * time.Second, patience: 5 * time.Minute, settle: time.Second, between: 200 * time.Millisecond, away: 4 * time.Second, down: 20 * time.Millisecond, longDown: 1500 * time.Millisecond}
)

func (p pace) client() []kgo.Opt {
	return []kgo.Opt{
		kgo.SessionTimeout(p.session), kgo.HeartbeatInterval(p.session / 6), kgo.RebalanceTimeout(p.session),
		// The embedded broker can miscount the members that have joined, and then waits for the
		// rebalance timeout, which begins anew with each attempt to join: the attempts of all
		// members together must be rarer.
		kgo.RequestTimeoutOverhead(5 * p.session),
	}
}
