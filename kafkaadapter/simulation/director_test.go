package simulation

import (
	"context"
	"time"
)

// maxMembers is the maximum number of members on a machine.
const maxMembers = 4

// direct makes members join, leave and lose their network, moves leaders and coordinators, and
// produces meanwhile. It returns with at least one member whose network works.
func (m *machine) direct(ctx context.Context) {
	w := m.w
	alive := append([]*member(nil), m.joined...)
	var muted []*member
	for range 2 + w.pick(6) {
		if !m.pause(ctx, w.upTo(w.between)) {
			break
		}
		switch k := w.pick(100); {
		case k < 25 && len(alive) < maxMembers, len(alive) == 1 && k < 50:
			b, err := m.join()
			if err != nil {
				w.violate("joining: %v", err)
				return
			}
			alive = append(alive, b)
		case k < 45 && len(alive) > 1:
			i := w.pick(len(alive))
			b := alive[i]
			alive = append(alive[:i:i], alive[i+1:]...)
			b.leave()
			w.count(func(t *tally) { t.left++ })
		case k < 65: // it continues with its records, and the group assigns its partitions to others
			b := alive[w.pick(len(alive))]
			b.wire.mute()
			w.risk(partitions)
			w.count(func(t *tally) { t.muted++ })
			muted = append(muted, b)
		case k < 75:
			w.cluster.RehashCoordinators()
		case k < 85:
			if err := w.moveLeader(); err != nil {
				w.violate("moving a leader: %v", err)
			}
		default:
			if err := w.produce(1 + w.pick(60)); err != nil {
				w.violate("producing: %v", err)
			}
		}
		if len(muted) > 0 && w.chance(40) {
			if !m.pause(ctx, w.upTo(w.away)) {
				break
			}
			for _, b := range muted {
				b.wire.restore()
			}
			muted = nil
		}
	}
	for _, b := range muted {
		b.wire.restore()
	}
}

// pause waits; it returns false if the power fails meanwhile.
func (m *machine) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-m.p.dead:
		return false
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (w *world) count(f func(*tally)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.tally)
}
