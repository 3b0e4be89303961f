package kafkaadapter

import (
	"errors"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

func acceptPartitions(o *Options) { o.Recovery = Recovery{ErrPartitionsChanged: TrustStore} }

func (r *rig) addPartitions(t testing.TB, n int32) {
	t.Helper()
	if _, err := kadm.NewClient(r.Client(t)).CreatePartitions(t.Context(), int(n), r.topic); err != nil {
		t.Fatal(err)
	}
	r.partitions += n
	kafkatest.Until(t, "the partition that is added", func() bool { return r.Log(t, r.topic, r.partitions-1).End >= 0 })
}

// sendByID produces events to the partitions that a producer with the ids as keys chooses.
func (r *rig) sendByID(t testing.TB, ids ...string) {
	t.Helper()
	for _, id := range ids {
		partition := int32(crc32.ChecksumIEEE([]byte(id)) % uint32(r.partitions))
		kafkatest.Until(t, "the event "+id, func() bool { return r.TryProduce(t, r.event(partition, id)) == nil })
	}
}

// A pod is a pinned consumer with its store.
type pod struct {
	ordinal int
	eng     *engine.Engine
	*member
}

func (r *rig) startPod(t testing.TB, p *pod, change ...func(*Options)) {
	t.Helper()
	r.eng = p.eng
	p.member = r.start(t, r.work(2, nil), append(change, pinned(p.ordinal, 2))...)
}

func (r *rig) newPods(t testing.TB) []*pod {
	t.Helper()
	pods := make([]*pod, 2)
	for i := range pods {
		r.open(t, storetest.NewMem(storage.Identity{}))
		pods[i] = &pod{ordinal: i, eng: r.eng}
	}
	return pods
}

// twice returns the events that were handled more than once.
func (r *rig) twice() (ids []string) {
	seen := make(map[string]bool)
	for _, id := range r.handledIDs() {
		if seen[id] {
			ids = append(ids, id)
		}
		seen[id] = true
	}
	return ids
}

func TestPartitionsAddedToAPinnedTopicStopItsConsumers(t *testing.T) {
	for name, restart := range map[string]bool{"while the consumers run": false, "while they are stopped": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2)
			pods, ids := r.newPods(t), numbered("event-", 12)
			for _, p := range pods {
				r.startPod(t, p)
			}
			r.sendByID(t, ids...)
			r.untilHandled(t, len(ids))
			if restart {
				for _, p := range pods {
					p.stop(t)
				}
			}
			r.addPartitions(t, 1)
			r.sendByID(t, ids...)
			for _, p := range pods {
				if restart {
					r.startPod(t, p)
				}
				p.pin.wake()
				e := p.stoppedOne(t)
				if !errors.Is(e, ErrPartitionsChanged) || e.Reason != "position" || !strings.Contains(e.Error(), "had 2 partitions and has 3") ||
					!strings.Contains(e.Error(), "Recovery[ErrPartitionsChanged] = trust_store") {
					t.Errorf("stopped: %v", e)
				}
			}
			for _, p := range pods {
				p.stop(t)
			}
			if ids := r.twice(); len(ids) > 0 {
				t.Errorf("handled twice: %v", ids)
			}
		})
	}
}

// A consumer whose partitions are idle stops, too, and one that has none of the topic until one is
// added.
func TestPartitionsAddedToAnIdlePinnedTopicStopItsConsumers(t *testing.T) {
	r := newRig(t, 1)
	pods := r.newPods(t)
	for _, p := range pods {
		r.startPod(t, p)
		kafkatest.Until(t, "a check of the topic", func() bool { return p.Ready() == nil })
	}
	r.addPartitions(t, 1)
	for _, p := range pods {
		p.pin.wake()
		if e := p.stoppedOne(t); !errors.Is(e, ErrPartitionsChanged) || e.Partition != int32(p.ordinal) {
			t.Errorf("stopped: %v", e)
		}
		p.stop(t)
	}
}

func TestChangedNumberOfPartitionsIsAccepted(t *testing.T) {
	for _, way := range []string{"by Recovery", "by AdoptOffset"} {
		t.Run(way, func(t *testing.T) {
			r := newRig(t, 2)
			p := r.newPods(t)[0]
			r.startPod(t, p)
			r.send(t, 0, "a")
			r.untilStored(t, 0, 1)
			p.stop(t)
			r.addPartitions(t, 1)
			if way == "by Recovery" {
				r.startPod(t, p, acceptPartitions)
			} else {
				r.startPod(t, p)
				for _, e := range []*StopError{p.stoppedOne(t), p.stoppedOne(t)} { // one is enough for a partition that is looked up later
					if err := p.AdoptOffset(t.Context(), r.topic, e.Partition, TrustStore, "ids choose the partition by themselves"); err != nil {
						t.Fatal(err)
					}
				}
				if all, err := p.Adoptions(t.Context()); err != nil || !slices.ContainsFunc(all, func(a Adoption) bool { return a.Kind == "PartitionsChanged" && a.Policy == TrustStore }) {
					t.Errorf("adoptions: %+v, %v", all, err)
				}
			}
			r.send(t, 0, "a", "b")
			r.send(t, 2, "c")
			r.untilStored(t, 0, 3)
			r.untilStored(t, 2, 1)
			p.stop(t)
			r.startPod(t, p) // the number is stored
			r.send(t, 2, "d")
			r.untilStored(t, 2, 2)
			p.stop(t)
			r.checkOnce(t, "a", "b", "c", "d")
		})
	}
}

// One consumer with all partitions has one store: nothing moves.
func TestPartitionsAddedToTheOnlyPinnedConsumerAreRead(t *testing.T) {
	r := newRig(t, 1)
	m := r.start(t, r.work(2, nil), pinned(0, 1))
	r.send(t, 0, "a")
	r.untilStored(t, 0, 1)
	r.addPartitions(t, 1)
	m.pin.wake()
	r.send(t, 1, "a", "b")
	r.untilStored(t, 1, 2)
	r.checkOnce(t, "a", "b")
	m.stop(t)
}

func TestRecreatedPinnedTopicWithMorePartitionsStops(t *testing.T) {
	r := newRig(t, 2)
	p := r.newPods(t)[0]
	r.startPod(t, p)
	r.send(t, 0, "a")
	r.untilStored(t, 0, 1)
	p.stop(t)
	r.RecreateTopic(t, r.topic, 3, nil)
	r.startPod(t, p, func(o *Options) { o.Recovery = Recovery{ErrRecreated: StartOver} })
	if e := p.stoppedOne(t); !errors.Is(e, ErrPartitionsChanged) {
		t.Errorf("stopped: %v", e)
	}
	p.stop(t)
}

func TestStoredShapeIsReadBack(t *testing.T) {
	s := resume.Topic{ID: [16]byte{1}, Partitions: 7}
	if got, err := parseShape(encodeShape(s)); err != nil || got != s {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parseShape([]byte{9}); err == nil {
		t.Error("an unknown format is accepted")
	}
}
