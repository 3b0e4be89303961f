package kafkaadapter

import (
	"errors"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
)

var (
	aTopicID = [16]byte{0xa1, 15: 0x1f}
	aUUID    = [16]byte{0x0a, 0x0b, 15: 0x0f}
	anID     = storage.Identity{UUID: aUUID, Incarnation: 3}
	ourMark  = authorOf(anID).metadata()
	olderRun = author{aUUID, 2}.metadata()
	laterRun = author{aUUID, 4}.metadata()
	foreign  = author{[16]byte{1}, 3}.metadata()
)

// at returns the store's offset in the topic with the broker's id.
func at(next int64) *engine.Offset {
	return &engine.Offset{Next: next, LeaderEpoch: 2, TopicID: aTopicID}
}

// look returns the view of a log from 10 to 100.
func look(store *engine.Offset, committed *brokers.Commit) view {
	return view{
		topic: "in", partition: 1, id: anID, topicID: aTopicID, start: 10, end: 100, epochEnd: -1,
		store: store, committed: committed,
	}
}

func inTopic(v view, topicID [16]byte) view { v.topicID = topicID; return v }
func epochUntil(v view, end int64) view     { v.epochEnd = end; return v }

const refused = int64(-1)

func TestWhereAPartitionBegins(t *testing.T) {
	other := [16]byte{9}
	mine := func(offset int64) *brokers.Commit {
		return &brokers.Commit{Offset: offset, Epoch: 2, Metadata: ourMark}
	}
	theirs := func(offset int64) *brokers.Commit {
		return &brokers.Commit{Offset: offset, Epoch: 2, Metadata: "kgo-1234"}
	}
	below, above := look(at(5), nil), look(at(101), mine(50))
	recreated := inTopic(look(at(50), nil), other)
	foreignView := look(at(50), &brokers.Commit{Offset: 60, Epoch: 2, Metadata: foreign})
	empty, ahead, moved := look(nil, theirs(40)), look(at(50), mine(60)), look(at(50), theirs(40))
	diverged := epochUntil(look(at(50), nil), 45)
	for _, tt := range []struct {
		name string
		v    view
		p    Recovery
		kind error
		want int64 // the expected error, or where it begins
	}{
		{"the store agrees with its commit", look(at(50), mine(50)), Recovery{}, nil, 50},
		{"Kafka's commit is behind the store", look(at(50), mine(40)), Recovery{}, nil, 50},
		{"nothing is committed in Kafka", look(at(50), nil), Recovery{}, nil, 50},
		{"another program committed the same offset", look(at(50), theirs(50)), Recovery{}, nil, 50},
		{"the log's start exactly", look(at(10), nil), Recovery{}, nil, 10},
		{"the log's end exactly", look(at(100), nil), Recovery{}, nil, 100},
		{"no offset anywhere", look(nil, nil), Recovery{}, nil, 10},
		{"the broker has no topic ids", inTopic(look(at(50), nil), [16]byte{}), Recovery{}, nil, 50},
		{"the store has no topic id", look(&engine.Offset{Next: 50}, nil), Recovery{}, nil, 50},
		{"the epoch ends at the offset", epochUntil(look(at(50), nil), 50), Recovery{}, nil, 50},

		{"below the log", below, Recovery{}, ErrBelowLog, refused},
		{"below the log, start over", below, Recovery{ErrBelowLog: StartOver}, ErrBelowLog, 10},
		{"above the log", above, Recovery{}, ErrAboveLog, refused},
		{"above the log, start over", above, Recovery{ErrAboveLog: StartOver}, ErrAboveLog, 10},
		{"above the log, trust Kafka", above, Recovery{ErrAboveLog: TrustKafka}, ErrAboveLog, 50},
		{"above the log, trust Kafka, which has nothing", look(at(101), nil), Recovery{ErrAboveLog: TrustKafka}, ErrAboveLog, refused},
		{"above the log, trust Kafka, which is above too", look(at(102), mine(101)), Recovery{ErrAboveLog: TrustKafka}, ErrAboveLog, refused},
		{"above the log, trust Kafka, which is below", look(at(102), mine(9)), Recovery{ErrAboveLog: TrustKafka}, ErrAboveLog, refused},

		{"recreated", recreated, Recovery{}, ErrRecreated, refused},
		{"recreated, start over", recreated, Recovery{ErrRecreated: StartOver}, ErrRecreated, 10},
		{"recreated, trust Kafka", inTopic(look(at(50), mine(20)), other), Recovery{ErrRecreated: TrustKafka}, ErrRecreated, 20},
		{"recreated, trust Kafka, which has nothing", recreated, Recovery{ErrRecreated: TrustKafka}, ErrRecreated, refused},

		{"foreign store", foreignView, Recovery{}, ErrForeignStore, refused},
		{"foreign store at the same offset", look(at(50), &brokers.Commit{Offset: 50, Epoch: 2, Metadata: foreign}), Recovery{}, ErrForeignStore, refused},
		{"older incarnation", look(at(50), &brokers.Commit{Offset: 50, Epoch: 2, Metadata: olderRun}), Recovery{}, ErrForeignStore, refused},
		{"later incarnation", look(at(50), &brokers.Commit{Offset: 50, Epoch: 2, Metadata: laterRun}), Recovery{}, ErrForeignStore, refused},
		{"foreign store, this one is empty", look(nil, &brokers.Commit{Offset: 50, Epoch: 2, Metadata: foreign}), Recovery{ErrEmptyStore: StartOver}, ErrForeignStore, refused},
		{"foreign store, trust the store", foreignView, Recovery{ErrForeignStore: TrustStore}, ErrForeignStore, 50},
		{"foreign store, trust Kafka", foreignView, Recovery{ErrForeignStore: TrustKafka}, ErrForeignStore, 60},
		{"foreign store, start over", foreignView, Recovery{ErrForeignStore: StartOver}, ErrForeignStore, 10},
		{"foreign store, trust the store, which is empty", look(nil, &brokers.Commit{Offset: 50, Epoch: 2, Metadata: foreign}), Recovery{ErrForeignStore: TrustStore}, ErrForeignStore, refused},

		{"empty store", empty, Recovery{}, ErrEmptyStore, refused},
		{"empty store that committed itself", look(nil, mine(40)), Recovery{}, ErrEmptyStore, refused},
		{"empty store, trust Kafka", empty, Recovery{ErrEmptyStore: TrustKafka}, ErrEmptyStore, 40},
		{"empty store, start over", empty, Recovery{ErrEmptyStore: StartOver}, ErrEmptyStore, 10},
		{"empty store, trust Kafka, which is below the log", look(nil, theirs(5)), Recovery{ErrEmptyStore: TrustKafka}, ErrBelowLog, refused},
		{"empty store, trust Kafka, which is below the log, start over", look(nil, theirs(5)),
			Recovery{ErrEmptyStore: TrustKafka, ErrBelowLog: StartOver}, ErrBelowLog, 10},

		{"Kafka ahead", ahead, Recovery{}, ErrKafkaAhead, refused},
		{"Kafka ahead, trust the store", ahead, Recovery{ErrKafkaAhead: TrustStore}, ErrKafkaAhead, 50},
		{"Kafka ahead, trust Kafka", ahead, Recovery{ErrKafkaAhead: TrustKafka}, ErrKafkaAhead, 60},
		{"moved back", moved, Recovery{}, ErrOffsetReset, refused},
		{"moved ahead", look(at(50), theirs(60)), Recovery{}, ErrOffsetReset, refused},
		{"moved, trust the store", moved, Recovery{ErrOffsetReset: TrustStore}, ErrOffsetReset, 50},
		{"moved, trust Kafka", moved, Recovery{ErrOffsetReset: TrustKafka}, ErrOffsetReset, 40},
		{"moved, trust Kafka, which is above the log", look(at(50), theirs(101)), Recovery{ErrOffsetReset: TrustKafka}, ErrAboveLog, refused},

		{"diverged", diverged, Recovery{}, ErrLogDiverged, refused},
		{"diverged, trust the store", diverged, Recovery{ErrLogDiverged: TrustStore}, ErrLogDiverged, 50},
		{"diverged, start over", diverged, Recovery{ErrLogDiverged: StartOver}, ErrLogDiverged, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := tt.v.begin(tt.p, false)
			if tt.want != refused {
				if err != nil || b.offset != tt.want {
					t.Errorf("begins at %d, %v; want %d", b.offset, err, tt.want)
				}
				if tt.kind != nil && !errors.Is(tt.kind, ErrLogDiverged) && !errors.Is(b.kind, tt.kind) {
					t.Errorf("the policy is for %v, want %v", b.kind, tt.kind)
				}
				return
			}
			var e *PositionError
			if !errors.As(err, &e) || !errors.Is(err, tt.kind) {
				t.Fatalf("begins at %d, %v; want %v", b.offset, err, tt.kind)
			}
			if field := disagreementOf(tt.kind).name; !strings.Contains(err.Error(), "Options.Recovery") || !strings.Contains(err.Error(), "Recovery[Err"+field+"] = ") {
				t.Errorf("the error does not name the policies: %v", err)
			}
		})
	}
}

func TestUnknownPartitionMayBeginAtTheEnd(t *testing.T) {
	v := look(nil, nil)
	if b, err := v.begin(nil, true); err != nil || b.offset != 100 {
		t.Errorf("begins at %d, %v", b.offset, err)
	}
	v = look(at(50), nil)
	if b, err := v.begin(nil, true); err != nil || b.offset != 50 {
		t.Errorf("with a stored offset, it begins at %d, %v", b.offset, err)
	}
}

func TestPositionErrorHasTheStateOfBothSides(t *testing.T) {
	v := look(at(50), &brokers.Commit{Offset: 60, Epoch: 2, Metadata: foreign})
	_, err := v.begin(nil, false)
	var e *PositionError
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	if *e != (PositionError{"in", 1, ErrForeignStore, 50, 60, 10, 100, foreign}) {
		t.Errorf("%+v", e)
	}
	empty := look(nil, nil)
	if err := empty.refuse(ErrBelowLog); !errors.As(err, &e) || e.Store != -1 || e.Committed != -1 {
		t.Errorf("an absent value is not -1: %+v", e)
	}
}

// The policies in the comments of Recovery, and no others.
func TestEachDisagreementHasItsPolicies(t *testing.T) {
	allowed := map[error]string{
		ErrBelowLog: "stop start_over", ErrAboveLog: "stop start_over trust_kafka", ErrRecreated: "stop start_over trust_kafka",
		ErrForeignStore: "stop trust_store trust_kafka start_over", ErrEmptyStore: "stop trust_kafka start_over",
		ErrKafkaAhead: "stop trust_store trust_kafka", ErrOffsetReset: "stop trust_store trust_kafka", ErrLogDiverged: "stop trust_store start_over",
		ErrModeChanged: "stop trust_store", ErrPartitionsChanged: "stop trust_store",
	}
	for kind, allowed := range allowed {
		for w := Stop; w <= StartOver+1; w++ {
			err := Recovery{kind: w}.check()
			want := strings.Contains(" "+allowed+" ", " "+w.String()+" ")
			if (err == nil) != want || err != nil && !errors.Is(err, ErrOption) {
				t.Errorf("%v = %v: %v", disagreementOf(kind).name, w, err)
			}
		}
	}
}

func TestRecoveryTrustsTheStoreWhereThatIsPossible(t *testing.T) {
	r := TrustStoreAlways()
	if err := r.check(); err != nil || len(r) != 6 || r[ErrKafkaAhead] != TrustStore || r[ErrBelowLog] != Stop {
		t.Errorf("%v, %v", r, err)
	}
	if err := (Recovery{ErrFenced: StartOver}).check(); !errors.Is(err, ErrOption) {
		t.Errorf("a policy for an error that is no disagreement: %v", err)
	}
}

func TestCommitMetadataIsGolden(t *testing.T) {
	const want = "hapax:0a0b000000000000000000000000000f:3"
	if ourMark != want {
		t.Errorf("metadata %q, want %q", ourMark, want)
	}
	if a, ours := parseMetadata(want); !ours || a != authorOf(anID) {
		t.Errorf("%+v, %v", a, ours)
	}
	for _, s := range []string{"", "kgo-1", "hapax:", "hapax:0a:3", "hapax:0a0b000000000000000000000000000f", "hapax:0a0b000000000000000000000000000f:",
		"hapax:0a0b000000000000000000000000000f:-1", "hapax:zz0b000000000000000000000000000f:3", "x" + want} {
		if a, ours := parseMetadata(s); ours || a != (author{}) {
			t.Errorf("%q is read as a commit of the adapter: %+v", s, a)
		}
	}
}
