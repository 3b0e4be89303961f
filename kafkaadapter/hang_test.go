package kafkaadapter

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// A hanging store answers nothing while it hangs.
type hanging struct {
	storage.Store
	mu    sync.Mutex
	hang  chan struct{} // nil: it answers
	asked chan []byte   // while it hangs, with the key
}

func (h *hanging) set(hang chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hang = hang
}

func (h *hanging) wait(key []byte) {
	h.mu.Lock()
	hang := h.hang
	h.mu.Unlock()
	if hang != nil {
		select {
		case h.asked <- key:
		default:
		}
		<-hang
	}
}

func (h *hanging) Apply(b *storage.Batch) (func() error, error) {
	h.wait(nil)
	return h.Store.Apply(b)
}

func (h *hanging) Claim(key []byte) ([]byte, bool, error) {
	h.wait(key)
	return h.Store.Claim(key)
}

func (h *hanging) State(key []byte) ([]byte, bool, error) {
	h.wait(key)
	return h.Store.State(key)
}

// hangingRig has a store that hangs from the call of hang until that of the func that hang returns.
func hangingRig(t *testing.T) (r *rig, store *hanging, hang func() (answer func())) {
	t.Helper()
	r = newRig(t, 1)
	store = &hanging{Store: storetest.NewMem(storage.Identity{}), asked: make(chan []byte, 100)}
	eng, err := engine.Open(store, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.eng = eng
	t.Cleanup(func() { _ = eng.Close() })
	return r, store, func() func() {
		c := make(chan struct{})
		store.set(c)
		answer := sync.OnceFunc(func() {
			store.set(nil)
			close(c)
		})
		t.Cleanup(answer)
		return answer
	}
}

// inTime fails the test if f does not return. Its bound is far above the timeouts under test.
func inTime(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s does not return", what)
	}
}

func TestRunEndsAlthoughTheStoreHangs(t *testing.T) {
	r, store, hang := hangingRig(t)
	r.send(t, 0, "a")
	m := r.start(t, r.work(1, nil), func(o *Options) { o.shutdownTimeout = 100 * time.Millisecond })
	r.untilStored(t, 0, 1)
	p := m.parts.get(topicPartition{r.topic, 0})
	answer := hang()
	r.send(t, 0, "b")
	kafkatest.Receive(t, store.asked)
	m.cancel()
	inTime(t, "Run", func() { <-m.done })
	if !errors.Is(m.err, context.DeadlineExceeded) {
		t.Errorf("Run: %v", m.err)
	}
	answer()
	kafkatest.Receive(t, p.done)
	m = r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 2)
	m.stop(t)
	r.checkOnce(t, "a", "b")
}

func TestRunThatCannotBeginEndsAlthoughTheStoreHangs(t *testing.T) {
	r, store, hang := hangingRig(t)
	answer := hang()
	m := r.start(t, r.work(1, nil))
	for !bytes.HasSuffix(kafkatest.Receive(t, store.asked), []byte(KeyPrefix+"k")) { // the engine asks, too
	}
	m.cancel()
	inTime(t, "Run", func() { <-m.done })
	if m.err != nil {
		t.Errorf("Run: %v", m.err)
	}
	answer()
}

func TestCallbacksReturnAlthoughTheStoreHangs(t *testing.T) {
	for name, give := range map[string]func(c *Consumer, lost map[string][]int32){
		"revoked": func(c *Consumer, lost map[string][]int32) { c.assign.revoked(lost) },
		"lost":    func(c *Consumer, lost map[string][]int32) { c.assign.lost(lost) },
	} {
		t.Run(name, func(t *testing.T) {
			r, store, hang := hangingRig(t)
			r.send(t, 0, "a")
			m := r.start(t, r.work(1, nil), func(o *Options) {
				o.DrainTimeout, o.shutdownTimeout = 100*time.Millisecond, 100*time.Millisecond
			})
			r.untilStored(t, 0, 1)
			p := m.parts.get(topicPartition{r.topic, 0})
			answer := hang()
			r.send(t, 0, "b")
			kafkatest.Receive(t, store.asked)
			inTime(t, name, func() { give(m.Consumer, map[string][]int32{r.topic: {0}}) })
			answer()
			kafkatest.Receive(t, p.done)
			m.cancel()
			kafkatest.Receive(t, m.done)
		})
	}
}

// The batch may have committed when Run ends, and its claims cannot be withdrawn any more.
func TestClaimsOfABatchThatHangsAreCountedAsLost(t *testing.T) {
	r, store, hang := hangingRig(t)
	r.send(t, 0, "a")
	m := r.start(t, r.noting(), func(o *Options) { o.shutdownTimeout = 100 * time.Millisecond })
	r.untilHandled(t, 1)
	p := m.parts.get(topicPartition{r.topic, 0})
	answer := hang()
	r.send(t, 0, "b")
	kafkatest.Receive(t, store.asked)
	m.cancel()
	inTime(t, "Run", func() { <-m.done })
	answer()
	kafkatest.Receive(t, p.done)
	if at, n := r.stored(t, 0), len(r.handled()); at != 2 || n != 1 {
		t.Fatalf("the store is at %d, %d events were handled", at, n)
	}
	m.counts(t, 1, "lost_total")
}
