package simulation

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// reap removes the members of other machines from the group. The embedded broker starts no session
// timeout for a member of the classic protocol whose connection ends while it joins: such a member
// would keep its partitions forever. The sessions of other members have expired by then.
func (m *machine) reap(ctx context.Context) {
	w := m.w
	g := w.cluster.GroupInfo(group)
	if g == nil {
		return
	}
	for _, gm := range g.Members {
		if slices.ContainsFunc(m.joined, func(b *member) bool { return b.clientID() == gm.ClientID && !b.hasExited() }) {
			continue
		}
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group = group
		rm := kmsg.NewLeaveGroupRequestMember()
		rm.MemberID, rm.InstanceID = gm.MemberID, gm.InstanceID
		req.Members = append(req.Members, rm)
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		if _, err := req.RequestWith(ctx, w.out); err == nil {
			w.count(func(t *tally) { t.reaped++ })
		}
		cancel()
	}
}
