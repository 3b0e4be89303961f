package simulation

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

// A member is a consumer on a machine. All members of a machine share its engine.
type member struct {
	*machine
	name string
	wire *wire
	c    *kafkaadapter.Consumer

	end    context.CancelFunc
	exited chan struct{}
	err    error // the result of Run, once exited is closed

	mu    sync.Mutex       // guards owned
	owned [partitions]bool // used by the callbacks of the group
}

// join starts a member.
func (m *machine) join() (*member, error) {
	w := m.w
	b := &member{machine: m, name: "m" + strconv.Itoa(len(m.joined)), exited: make(chan struct{})}
	b.wire = m.wires.add()
	var err error
	if b.c, err = kafkaadapter.New(m.eng, b.options()); err != nil {
		return nil, err
	}
	w.mu.Lock()
	m.joined = append(m.joined, b)
	w.mu.Unlock()
	ctx, end := context.WithCancel(context.Background())
	b.end = end
	go func() {
		defer close(b.exited)
		b.err = b.c.Run(ctx)
		cutOff := w.together && errors.Is(b.err, context.DeadlineExceeded) // a handler was too slow
		if !m.p.off.Load() && (b.err != nil && !cutOff || ctx.Err() == nil) {
			w.violate("consumer %s has ended: %v", b.name, b.err)
		}
	}()
	return b, nil
}

// clientID returns the client id of the member. It is unique among all machines.
func (b *member) clientID() string { return fmt.Sprintf("%d-%s", b.life, b.name) }

func (b *member) hasExited() bool {
	select {
	case <-b.exited:
		return true
	default:
		return false
	}
}

// leave ends a member in an orderly way.
func (b *member) leave() {
	b.end()
	<-b.exited
}

// stopped is called when a partition stops. Only an intrusion, or temporarily a fault of the
// brokers or of the network, may stop one.
func (b *member) stopped(e *kafkaadapter.StopError) {
	if b.p.off.Load() {
		return
	}
	w := b.w
	if i := w.intrusion; i != nil && w.local(e.Partition) == i.partition && errors.Is(e, i.kind) {
		i.seen.Store(true)
		return
	}
	if passing[e.Reason] && (b.faults != nil || w.together || w.of > 0) {
		return
	}
	if e.Reason == "failing" && errors.Is(e, kafkaadapter.ErrNoProgress) {
		return // the attempts of a poison event and the pauses between them can last longer than SilenceTimeout
	}
	if e.Reason == "fenced" && w.together {
		return // another member has the partition already
	}
	w.violate("%v", e)
}

func (b *member) assigned(added map[string][]int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, partition := range added[topic] {
		p := b.w.local(partition)
		b.owned[p] = true
		b.w.ownedBy(p, b)
	}
}

func (b *member) revoked(gone map[string][]int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, partition := range gone[topic] {
		b.owned[b.w.local(partition)] = false
	}
}

// lost is called when the group has revoked partitions at once. AtMostOnce loses the claimed
// records that waited for their handlers.
func (b *member) lost(gone map[string][]int32) {
	b.revoked(gone)
	b.w.risk(len(gone[topic]))
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	b.w.tally.expelled++
}

func (b *member) owns(partition int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.owned[partition]
}

// risk records that AtMostOnce may lose one batch of each of the given number of partitions.
func (w *world) risk(partitions int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.atRisk += partitions * maxBatch
}

// ownedBy counts the partitions that go from one living member to another.
func (w *world) ownedBy(partition int, b *member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if was := w.owner[partition]; was != nil && was.machine == b.machine && was != b {
		w.tally.moved++
	}
	w.owner[partition] = b
}

// The application key under which a batch stores the name of its member.
const writerPrefix = "writer/"

func writerKey(partition int32) []byte { return append([]byte(writerPrefix), byte(partition)) }

func (b *member) handle(ctx context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
	if err := tx.Put(writerKey(rec.Partition), []byte(b.name)); err != nil {
		return err
	}
	return b.machine.handle(ctx, tx, rec)
}

// watch checks a batch before the store has it: no offset decreases, except where AtMostOnce
// withdraws claims, and no member writes for a partition after OnRebalance has returned. On a busy
// machine, OnRebalance may return before the store has the end of the ownership (DrainTimeout), so
// that this is checked in virtual time only.
func (m *machine) watch(batch *storage.Batch) {
	w := m.w
	if w.atMostOnce {
		return
	}
	for _, s := range batch.State {
		switch {
		case s.Key[0] == offsetKind && s.Value != nil:
			p := w.local(int32(s.Key[len(s.Key)-1]))
			next, _ := binary.Varint(s.Value)
			if next < m.reached[p] {
				w.violate("a batch sets partition %d from %d back to %d", p, m.reached[p], next)
			}
			m.reached[p] = next
		case s.Key[0] == hostKind && len(s.Key) == len(writerPrefix)+2 && string(s.Key[1:len(s.Key)-1]) == writerPrefix:
			p := w.local(int32(s.Key[len(s.Key)-1]))
			if b := m.named(string(s.Value)); b != nil && w.pace == virtualTime && !b.owns(p) && !m.p.off.Load() {
				w.violate("member %s writes for partition %d after its revocation", b.name, p)
			}
		}
	}
}

func (m *machine) named(name string) *member {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	for _, b := range m.joined {
		if b.name == name {
			return b
		}
	}
	return nil
}
