package outbox

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A partition that does not answer, while others do, is held: its messages are not sent, so that
// each batch does not wait for it. The plain relay leaves the messages that it has sent to the
// client, which publishes them when it can. The partition is held until then. In a Kafka
// transaction this is impossible: the exactly-once relay aborts the transaction and holds the
// partition for a time. The plain relay also holds it for a time, after Batch.Time, if the client
// has a message without a key, which may go to another partition.

// silence is the time without an answer after which a partition is held. The exactly-once relay
// doubles it each time a partition is held in succession, so that it eventually publishes to a slow
// partition.
const silence = time.Second

// A partition of a topic; number is unknownPartition if the client has not chosen one, because it
// does not know the topic.
type partition struct {
	topic  string
	number int32
}

const unknownPartition = -1

// holds are the held partitions. The relay changes them between batches, and the partitioners of
// its clients read them.
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
	sent  int   // plain relay: messages that the client has
	times int   // number of successive holds for a time
	until int64 // when the partition is tried again; 0: when the client has an answer
	over  bool  // the time until has come
}

// reset ends all holds, after the client of the session that made them was closed.
func (h *holds) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.all)
	h.count()
}

// count makes the number of held partitions visible to metrics and partitioners.
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

// failed records the failure of a message that was left to the client. It reports whether it was
// the last such message of its partition, whose hold then ends.
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

// pass lets partitions be tried again whose time has come. A time that is more than longest away
// counts as past, because the clock was set back.
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
	number atomic.Int32 // the partition that the client has chosen
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
