package outbox

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A partition that does not answer, while others do, is held: its messages are not sent, so that each
// batch does not wait for it. The plain relay leaves the messages that it has sent to the client,
// which publishes them when it can; the partition is held until then. In a Kafka transaction that is
// impossible: the exactly-once relay aborts it, and holds the partition for a time. So does the plain
// relay after Batch.Time if the client has a message without a key, which other partitions may have.

// silence is the time without an answer after which a partition is held. It is doubled for each time
// that a partition was held in succession, by the exactly-once relay: so a slow one is published to.
const silence = time.Second

// A partition of a topic; number is unknownPartition if the client has not chosen one, because it
// does not know the topic.
type partition struct {
	topic  string
	number int32
}

const unknownPartition = -1

// holds are the held partitions. The relay changes them, between batches; partitioners of clients
// read them.
type holds struct {
	n   atomic.Int64
	mu  sync.Mutex
	all map[partition]*hold
}

func (p partition) attrs() []any {
	if p.number == unknownPartition {
		return []any{slog.String("topic", p.topic)}
	}
	return []any{slog.String("topic", p.topic), slog.Int("partition", int(p.number))}
}

type hold struct {
	sent  int   // messages that the client has, of the plain relay
	times int   // for a time, in succession
	until int64 // when the partition is tried again; 0: when the client has an answer
	over  bool  // that time has come
}

// reset ends all holds: the client of the session that made them is closed.
func (h *holds) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.all)
	h.count()
}

// count publishes the number of held partitions to metrics, and to partitioners.
func (h *holds) count() {
	n := 0
	for _, held := range h.all {
		if !held.over {
			n++
		}
	}
	h.n.Store(int64(n))
}

// holding reports whether any partition is held.
func (h *holds) holding() bool { return h.n.Load() > 0 }

// held reports whether a partition is held, and until when.
func (h *holds) held(p partition) (until int64, held bool) {
	if !h.holding() {
		return 0, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if found := h.all[p]; found != nil && !found.over {
		return found.until, true
	}
	return 0, false
}

// heldTopic reports whether any partition of a topic is held.
func (h *holds) heldTopic(topic string) bool {
	if !h.holding() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for p, found := range h.all {
		if p.topic == topic && !found.over {
			return true
		}
	}
	return false
}

// change changes the hold of a partition, and reports whether it was not held.
func (h *holds) change(p partition, fn func(*hold)) (began bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = make(map[partition]*hold)
	}
	if began = h.all[p] == nil; began {
		h.all[p] = &hold{}
	}
	fn(h.all[p])
	h.count()
	return began
}

// times returns how often a partition was held in succession.
func (h *holds) times(p partition) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if found := h.all[p]; found != nil {
		return found.times
	}
	return 0
}

// end ends the hold of a partition that has answered, and reports whether there was one.
func (h *holds) end(p partition) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, found := h.all[p]
	delete(h.all, p)
	h.count()
	return found
}

// failed records that a message that was left to the client has failed, and reports whether it was
// the last one of its partition, which is then not held any more.
func (h *holds) failed(p partition) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := h.all[p]
	if found == nil {
		return false
	}
	if found.sent--; found.sent > 0 {
		return false
	}
	delete(h.all, p)
	h.count()
	return true
}

// pass lets partitions be tried whose time is over, or, because the clock was set back, more than
// longest away.
func (h *holds) pass(now int64, longest time.Duration) {
	if !h.holding() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, found := range h.all {
		found.over = found.over || found.until != 0 && (found.until <= now || found.until > now+longest.Milliseconds())
	}
	h.count()
}

// A flight is a message on its way to the broker. It is the context of its record, from which the
// client's hooks and partitioner find it.
type flight struct {
	context.Context
	item   *item
	number atomic.Int32 // of the partition that the client has chosen
	held   atomic.Bool  // it was not sent, because this partition is held
}

type flightKey struct{}

func newFlight(i *item) *flight {
	f := &flight{Context: context.Background(), item: i}
	f.number.Store(unknownPartition)
	return f
}

// Value implements [context.Context].
func (f *flight) Value(key any) any {
	if key == (flightKey{}) {
		return f
	}
	return nil
}

func flightOf(r *kgo.Record) *flight {
	if r.Context == nil {
		return nil
	}
	f, _ := r.Context.Value(flightKey{}).(*flight)
	return f
}

func (f *flight) partition() partition { return partition{f.item.Entry.Topic, f.number.Load()} }

// observer is a hook of the client: it notes the partition of each record.
type observer struct{}

var _ kgo.HookProduceRecordPartitioned = observer{}

// OnProduceRecordPartitioned implements [kgo.HookProduceRecordPartitioned].
func (observer) OnProduceRecordPartitioned(r *kgo.Record, _ int32) {
	if f := flightOf(r); f != nil {
		f.number.Store(r.Partition)
	}
}
