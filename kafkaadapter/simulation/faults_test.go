package simulation

import (
	"errors"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A faultKind is a kind of request, and the errors with which brokers may answer it. None of them
// ends Run.
type faultKind struct {
	weight   int // how often it is chosen, relative to the others
	key      kmsg.Key
	topic    string // its partitions get the error; empty: the request does not select by topic
	topLevel bool
	errs     []*kerr.Error
}

var faultKinds = []faultKind{
	{weight: 6, key: kmsg.Fetch, topic: topic, errs: []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch, kerr.KafkaStorageError, kerr.OffsetOutOfRange,
		kerr.UnknownTopicOrPartition, kerr.UnknownServerError, kerr.TopicAuthorizationFailed, kerr.OffsetNotAvailable, kerr.CorruptMessage}},
	{weight: 4, key: kmsg.ListOffsets, topic: topic, errs: []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.UnknownLeaderEpoch, kerr.KafkaStorageError, kerr.UnknownTopicOrPartition, kerr.UnknownServerError,
		kerr.OffsetNotAvailable, kerr.LeaderNotAvailable, kerr.TopicAuthorizationFailed}},
	{weight: 2, key: kmsg.OffsetForLeaderEpoch, topic: topic, errs: []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.UnknownLeaderEpoch, kerr.FencedLeaderEpoch, kerr.KafkaStorageError}},
	// RequestTimedOut: the commit is made, but the client gets an error.
	{weight: 4, key: kmsg.OffsetCommit, errs: []*kerr.Error{
		kerr.RequestTimedOut, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.UnknownServerError,
		kerr.RebalanceInProgress, kerr.OffsetMetadataTooLarge}},
	{weight: 4, key: kmsg.OffsetFetch, errs: []*kerr.Error{
		kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.UnstableOffsetCommit, kerr.UnknownServerError}},
	{weight: 1, key: kmsg.Heartbeat, topLevel: true, errs: []*kerr.Error{
		kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.CoordinatorNotAvailable, kerr.NotCoordinator}},
	{weight: 1, key: kmsg.FindCoordinator, errs: []*kerr.Error{kerr.CoordinatorNotAvailable}},
	{weight: 1, key: kmsg.Metadata, topic: topic, errs: []*kerr.Error{kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition}},
	{weight: 2, key: kmsg.Produce, topic: deadTopic, errs: []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.RequestTimedOut, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.KafkaStorageError,
		kerr.PolicyViolation}},
	{weight: 1, key: kmsg.InitProducerID, topLevel: true, errs: []*kerr.Error{kerr.CoordinatorNotAvailable, kerr.NotCoordinator}},
}

// cutConnection means that a broker ends the connection instead of answering.
const cutConnection = "connection"

// A trouble is the list of broker faults on one machine. Each fault begins some requests after its
// installation, and lasts for a few requests.
type trouble struct {
	w      *world
	faults []struct {
		name string
		*kfake.FaultHandle
	}
	over atomic.Bool
}

// troubled installs faults until the returned trouble is ended.
func (w *world) troubled() *trouble {
	t := &trouble{w: w}
	for range 1 + w.pick(8) {
		if w.chance(15) {
			t.cutConnection()
			continue
		}
		t.fault(pickWeighted(w, faultKinds))
	}
	return t
}

func pickWeighted(w *world, kinds []faultKind) faultKind {
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	n := w.pick(sum)
	for _, k := range kinds {
		if n -= k.weight; n < 0 {
			return k
		}
	}
	panic("unreachable")
}

func (t *trouble) fault(k faultKind) {
	w := t.w
	f := kfake.Fault{Keys: []kmsg.Key{k.key}, Topic: k.topic, TopLevel: k.topLevel, Err: k.errs[w.pick(len(k.errs))], Count: 1 + w.pick(4)}
	if k.topic == topic && w.chance(50) {
		f.Partitions = []int32{w.global(w.pick(partitions))}
	}
	skip := w.pick(12)
	var last kmsg.Request
	f.When = func(req kmsg.Request) bool { // only the cluster's goroutine calls it
		if req != last {
			last = req
			skip--
		}
		return skip < 0
	}
	t.faults = append(t.faults, struct {
		name string
		*kfake.FaultHandle
	}{k.key.Name(), w.cluster.Fault(f)})
}

// cutConnection ends the connection of a request instead of answering it.
func (t *trouble) cutConnection() {
	w := t.w
	keys := []kmsg.Key{kmsg.Fetch, kmsg.ListOffsets, kmsg.OffsetCommit, kmsg.OffsetFetch, kmsg.Heartbeat, kmsg.Metadata}
	skip := w.pick(20)
	w.cluster.ControlKey(int16(keys[w.pick(len(keys))]), func(kmsg.Request) (kmsg.Response, error, bool) {
		if t.over.Load() {
			w.cluster.DropControl()
			return nil, nil, false
		}
		if skip--; skip >= 0 {
			return nil, nil, false
		}
		w.hit(cutConnection, 1)
		return nil, errors.New("the connection was cut"), true
	})
}

func (w *world) hit(name string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tally.faults[name] += n
}

// end removes the faults that have not occurred, and counts the others. A nil trouble has nothing
// to end.
func (t *trouble) end() {
	if t == nil {
		return
	}
	t.over.Store(true)
	for _, f := range t.faults {
		f.Remove()
		t.w.hit(f.name, f.Hits())
	}
}

// passing lists the reasons for which faults of brokers may stop a partition temporarily.
var passing = map[string]bool{
	"unreachable": true, "unauthorized": true, "topic_gone": true, "fetch_error": true, "unreadable": true, "silent": true, "dead_letter": true,
}
