package kafkaadapter

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// offsets has the offsets of a partition in the store and in Kafka. Reading starts at the store's
// offset. Kafka's offset follows it for lag tools, and contains the identity of the store that has
// the claims.
type offsets struct {
	mu     sync.Mutex // guards the rest
	stored kgo.EpochOffset
	owned  bool            // stored is known, and this assignment owns the partition
	kafka  *brokers.Commit // nil: the group has none
	dirty  bool            // commit to Kafka even if the offset is unchanged
	self   string          // the metadata of commits
	// time of the last unanswered commit, which may be applied after the next one
	unansweredAt time.Time

	// For pinned partitions.
	seen     *brokers.Commit // last reported by Kafka, or committed by this assignment
	changed  bool            // another process has committed for the group: look the partition up
	signedAt time.Time       // the last commit by this assignment
	fenced   bool            // another consumer has become the owner for good, and commits to Kafka
}

// known returns the group's commit that was fetched for the assignment, or that this assignment has
// made since.
func (o *offsets) known() *brokers.Commit {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.owned && resume.ParseOpenMark(o.self).Is { // do not handle records again only because their commit is still pending
		return &brokers.Commit{Offset: o.stored.Offset, Epoch: o.stored.Epoch, Metadata: o.self}
	}
	return o.kafka
}

// fetched records the group's commit if it could not be fetched at the assignment.
func (o *offsets) fetched(k *brokers.Commit) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kafka, o.seen = k, k
}

// begin records where the assignment starts after the comparison of store and Kafka. If a policy
// overrides Kafka's commit, or the commit belongs to another store, the offset is committed to
// Kafka before any record is handled. Otherwise, a commit ahead of the store would look as if the
// store had lost data.
func (o *offsets) begin(b resume.Beginning, epoch int32, self string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stored, o.owned, o.changed, o.self = kgo.EpochOffset{Epoch: epoch, Offset: b.Offset}, true, false, self
	o.dirty = o.dirty || o.kafka == nil || o.kafka.Metadata != self || o.kafka.Offset > b.Offset || b.Kind != nil && o.kafka.Offset != b.Offset
	if b.Kind != nil {
		o.kafka = &brokers.Commit{Offset: b.Offset, Epoch: epoch, Metadata: self}
	}
}

// fence ends the commits of this assignment, which would set Kafka's offset back.
func (o *offsets) fence() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fenced = true
}

// markUncertain marks Kafka's commit, because the store may be ahead of the handled records.
func (o *offsets) markUncertain(self string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.self, o.dirty = self, true
}

// saw records the store's offset for the lag of a partition that is not taken over yet.
func (o *offsets) saw(next int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.owned {
		o.stored.Offset = next
	}
}

// moved records the offset that a batch has written to the store. With AtMostOnce, it is the offset
// of the first record whose handler has not begun, to which the store may be set back.
func (o *offsets) moved(next int64, epoch int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stored = kgo.EpochOffset{Epoch: epoch, Offset: next}
}

// next returns the store's offset, 0 if it is unknown.
func (o *offsets) next() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stored.Offset
}

// position returns the current offset: the store's or, without a store, the last one known to this
// assignment, or Kafka's.
func (o *offsets) position() (at kgo.EpochOffset, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.owned && o.kafka != nil {
		return kgo.EpochOffset{Epoch: -1, Offset: o.kafka.Offset}, true
	}
	return o.stored, o.owned
}

// inMemory returns the offset that this assignment has reached, if it owns the partition.
func (o *offsets) inMemory() (at kgo.EpochOffset, owned bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stored, o.owned
}

// pending returns the offset that Kafka does not have yet, and its metadata.
func (o *offsets) pending() (kgo.EpochOffset, string, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	expires := !o.signedAt.IsZero() && time.Since(o.signedAt) > signAgain
	late := !o.unansweredAt.IsZero() && time.Since(o.unansweredAt) < lateCommit
	return o.stored, o.self, o.owned && !o.fenced && !o.changed && (o.dirty || expires || late || o.kafka.Offset != o.stored.Offset)
}

// lateCommit is how long an unanswered commit may still be applied. It would set Kafka's offset
// back, or remove the mark of Options.ReopenStore, so offsets are committed repeatedly for that
// time even if they have not moved.
const lateCommit = 2 * time.Minute

func (o *offsets) unanswered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unansweredAt = time.Now()
}

// signAgain is the time after which an offset is committed again even if it has not moved, because
// brokers forget the commits of a group without members, and with them the identity of the store,
// after offsets.retention.minutes.
const signAgain = time.Hour

func (o *offsets) committed(at kgo.EpochOffset, self string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.signedAt = time.Now()
	o.kafka = &brokers.Commit{Offset: at.Offset, Epoch: at.Epoch, Metadata: self}
	o.seen = o.kafka
	o.dirty = at.Offset > o.stored.Offset || self != o.self // the assignment was restarted meanwhile
}

// replaced reports whether another process has changed the group's commit since the last
// comparison. It stores the new commit for the next comparison.
func (o *offsets) replaced(now *brokers.Commit, self string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now == nil || now.Metadata == self || o.seen != nil && *now == *o.seen {
		return false
	}
	o.kafka, o.seen, o.changed = now, now, true
	return true
}

// isChanged reports whether replaced has found another commit since the assignment was compared.
func (o *offsets) isChanged() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

func (o *offsets) isSigned() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.dirty
}

// errCommitChanged means that another process has committed for a pinned partition, which is then
// compared again.
var errCommitChanged = errors.New("hapax: another process has committed an offset for the partition")

// logEnds has the ends of a partition's log, as last reported by the broker.
type logEnds struct {
	mu       sync.Mutex   // held by report
	reported time.Time    // when report was last called
	end      atomic.Int64 // the high watermark
	stable   atomic.Int64 // last stable offset, up to which consumers read
	stableAt atomic.Int64 // when stable was reported, Unix nanoseconds; 0 if never
}

// report stores the ends that the broker had at asOf or later; -1 means unknown. A lower end is
// outdated if there was another report since asOf. asOf is zero for records that were fetched some
// time ago.
func (e *logEnds) report(asOf time.Time, end, stable int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	newest := !asOf.Before(e.reported)
	e.reported = time.Now()
	if end >= 0 && (newest || end > e.end.Load()) {
		e.end.Store(end)
	}
	if stable >= 0 && (newest || stable >= e.stable.Load()) {
		e.stable.Store(stable)
		e.stableAt.Store(e.reported.UnixNano())
	}
}

// freshFor is how long a reported end of the log is valid, so that a partition that could not be
// fetched for weeks does not count as caught up.
const freshFor = time.Minute

// caughtUp reports whether next is the last stable offset, according to a recent report of the
// broker.
func (e *logEnds) caughtUp(next int64) bool {
	return time.Since(time.Unix(0, e.stableAt.Load())) < freshFor && next >= e.stable.Load()
}
