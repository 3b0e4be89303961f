package resume

import (
	"errors"
	"testing"
)

var (
	aTopicID = [16]byte{0xa1, 15: 0x1f}
	aUUID    = [16]byte{0x0a, 0x0b, 15: 0x0f}
	anID     = Author{aUUID, 3}
	ourMark  = anID.Metadata()
	olderRun = Author{aUUID, 2}.Metadata()
	laterRun = Author{aUUID, 4}.Metadata()
	foreign  = Author{[16]byte{1}, 3}.Metadata()
)

// at returns the store's offset in the topic with the broker's id.
func at(next int64) *Offset {
	return &Offset{Next: next, LeaderEpoch: 2, TopicID: aTopicID}
}

// look returns the Facts of a log from 10 to 100.
func look(store *Offset, committed *Commit) Facts {
	return Facts{
		Self: anID, Topic: Topic{aTopicID, 2}, Start: 10, End: 100, EpochEnd: -1,
		Store: store, Committed: committed,
	}
}

func inTopic(v Facts, topicID [16]byte) Facts { v.Topic.ID = topicID; return v }
func epochUntil(v Facts, end int64) Facts     { v.EpochEnd = end; return v }

const isRefused = int64(-1)

func TestWhereAPartitionBegins(t *testing.T) {
	other := [16]byte{9}
	mine := func(offset int64) *Commit {
		return &Commit{Offset: offset, Epoch: 2, Metadata: ourMark}
	}
	theirs := func(offset int64) *Commit {
		return &Commit{Offset: offset, Epoch: 2, Metadata: "kgo-1234"}
	}
	below, above := look(at(5), nil), look(at(101), mine(50))
	recreated := inTopic(look(at(50), nil), other)
	foreignView := look(at(50), &Commit{Offset: 60, Epoch: 2, Metadata: foreign})
	empty, ahead, moved := look(nil, theirs(40)), look(at(50), mine(60)), look(at(50), theirs(40))
	diverged := epochUntil(look(at(50), nil), 45)
	for _, tt := range []struct {
		name string
		v    Facts
		p    Policies
		kind error
		want int64 // the expected error, or where it begins
	}{
		{"the store agrees with its commit", look(at(50), mine(50)), Policies{}, nil, 50},
		{"Kafka's commit is behind the store", look(at(50), mine(40)), Policies{}, nil, 50},
		{"nothing is committed in Kafka", look(at(50), nil), Policies{}, nil, 50},
		{"another program committed the same offset", look(at(50), theirs(50)), Policies{}, nil, 50},
		{"the log's start exactly", look(at(10), nil), Policies{}, nil, 10},
		{"the log's end exactly", look(at(100), nil), Policies{}, nil, 100},
		{"no offset anywhere", look(nil, nil), Policies{}, nil, 10},
		{"the broker has no topic ids", inTopic(look(at(50), nil), [16]byte{}), Policies{}, nil, 50},
		{"the store has no topic id", look(&Offset{Next: 50}, nil), Policies{}, nil, 50},
		{"the epoch ends at the offset", epochUntil(look(at(50), nil), 50), Policies{}, nil, 50},

		{"below the log", below, Policies{}, ErrBelowLog, isRefused},
		{"below the log, start over", below, Policies{ErrBelowLog: StartOver}, ErrBelowLog, 10},
		{"above the log", above, Policies{}, ErrAboveLog, isRefused},
		{"above the log, start over", above, Policies{ErrAboveLog: StartOver}, ErrAboveLog, 10},
		{"above the log, trust Kafka", above, Policies{ErrAboveLog: TrustKafka}, ErrAboveLog, 50},
		{"above the log, trust Kafka, which has nothing", look(at(101), nil), Policies{ErrAboveLog: TrustKafka}, ErrAboveLog, isRefused},
		{"above the log, trust Kafka, which is above too", look(at(102), mine(101)), Policies{ErrAboveLog: TrustKafka}, ErrAboveLog, isRefused},
		{"above the log, trust Kafka, which is below", look(at(102), mine(9)), Policies{ErrAboveLog: TrustKafka}, ErrAboveLog, isRefused},

		{"recreated", recreated, Policies{}, ErrRecreated, isRefused},
		{"recreated, start over", recreated, Policies{ErrRecreated: StartOver}, ErrRecreated, 10},
		{"recreated, trust Kafka", inTopic(look(at(50), mine(20)), other), Policies{ErrRecreated: TrustKafka}, ErrRecreated, 20},
		{"recreated, trust Kafka, which has nothing", recreated, Policies{ErrRecreated: TrustKafka}, ErrRecreated, isRefused},

		{"foreign store", foreignView, Policies{}, ErrForeignStore, isRefused},
		{"foreign store at the same offset", look(at(50), &Commit{Offset: 50, Epoch: 2, Metadata: foreign}), Policies{}, ErrForeignStore, isRefused},
		{"older incarnation", look(at(50), &Commit{Offset: 50, Epoch: 2, Metadata: olderRun}), Policies{}, ErrForeignStore, isRefused},
		{"later incarnation", look(at(50), &Commit{Offset: 50, Epoch: 2, Metadata: laterRun}), Policies{}, ErrForeignStore, isRefused},
		{"foreign store, this one is empty", look(nil, &Commit{Offset: 50, Epoch: 2, Metadata: foreign}), Policies{ErrEmptyStore: StartOver}, ErrForeignStore, isRefused},
		{"foreign store, trust the store", foreignView, Policies{ErrForeignStore: TrustStore}, ErrForeignStore, 50},
		{"foreign store, trust Kafka", foreignView, Policies{ErrForeignStore: TrustKafka}, ErrForeignStore, 60},
		{"foreign store, start over", foreignView, Policies{ErrForeignStore: StartOver}, ErrForeignStore, 10},
		{"foreign store, trust the store, which is empty", look(nil, &Commit{Offset: 50, Epoch: 2, Metadata: foreign}), Policies{ErrForeignStore: TrustStore}, ErrForeignStore, isRefused},

		{"empty store", empty, Policies{}, ErrEmptyStore, isRefused},
		{"empty store that committed itself", look(nil, mine(40)), Policies{}, ErrEmptyStore, isRefused},
		{"empty store, trust Kafka", empty, Policies{ErrEmptyStore: TrustKafka}, ErrEmptyStore, 40},
		{"empty store, start over", empty, Policies{ErrEmptyStore: StartOver}, ErrEmptyStore, 10},
		{"empty store, trust Kafka, which is below the log", look(nil, theirs(5)), Policies{ErrEmptyStore: TrustKafka}, ErrBelowLog, isRefused},
		{"empty store, trust Kafka, which is below the log, start over", look(nil, theirs(5)),
			Policies{ErrEmptyStore: TrustKafka, ErrBelowLog: StartOver}, ErrBelowLog, 10},

		{"Kafka ahead", ahead, Policies{}, ErrKafkaAhead, isRefused},
		{"Kafka ahead, trust the store", ahead, Policies{ErrKafkaAhead: TrustStore}, ErrKafkaAhead, 50},
		{"Kafka ahead, trust Kafka", ahead, Policies{ErrKafkaAhead: TrustKafka}, ErrKafkaAhead, 60},
		{"moved back", moved, Policies{}, ErrOffsetReset, isRefused},
		{"moved ahead", look(at(50), theirs(60)), Policies{}, ErrOffsetReset, isRefused},
		{"moved, trust the store", moved, Policies{ErrOffsetReset: TrustStore}, ErrOffsetReset, 50},
		{"moved, trust Kafka", moved, Policies{ErrOffsetReset: TrustKafka}, ErrOffsetReset, 40},
		{"moved, trust Kafka, which is above the log", look(at(50), theirs(101)), Policies{ErrOffsetReset: TrustKafka}, ErrAboveLog, isRefused},

		{"diverged", diverged, Policies{}, ErrLogDiverged, isRefused},
		{"diverged, trust the store", diverged, Policies{ErrLogDiverged: TrustStore}, ErrLogDiverged, 50},
		{"diverged, start over", diverged, Policies{ErrLogDiverged: StartOver}, ErrLogDiverged, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, refused := tt.v.Begin(tt.p)
			if tt.want == isRefused {
				if !errors.Is(refused, tt.kind) {
					t.Fatalf("begins at %d, %v; want %v", b.Offset, refused, tt.kind)
				}
				return
			}
			if refused != nil || b.Offset != tt.want {
				t.Errorf("begins at %d, %v; want %d", b.Offset, refused, tt.want)
			}
			if tt.kind != nil && !errors.Is(tt.kind, ErrLogDiverged) && !errors.Is(b.Kind, tt.kind) {
				t.Errorf("the policy is for %v, want %v", b.Kind, tt.kind)
			}
		})
	}
}

func TestUnknownPartitionMayBeginAtTheEnd(t *testing.T) {
	for _, tt := range []struct {
		name   string
		store  *Offset
		before int64 // the end when it began to wait for the store, 0 if it did not
		want   int64
	}{
		{"at the end", nil, 0, 100},
		{"with a stored offset", at(50), 0, 50},
		{"after it has waited", nil, 90, 90},
		{"records were removed meanwhile", nil, 5, 10},
		{"the log was cut meanwhile", nil, 200, 100},
	} {
		v := look(tt.store, nil)
		if v.FromEnd = true; tt.before > 0 {
			v.EndBefore = &tt.before
		}
		if b, refused := v.Begin(nil); refused != nil || b.Offset != tt.want {
			t.Errorf("%s: begins at %d, %v; want %d", tt.name, b.Offset, refused, tt.want)
		}
	}
}

func TestNumberOfPartitionsMustNotChange(t *testing.T) {
	pinned := func(v Facts, before uint32) Facts { v.Before = &Topic{v.Topic.ID, before}; return v }
	trust := Policies{ErrPartitionsChanged: TrustStore}
	for _, tt := range []struct {
		name    string
		v       Facts
		p       Policies
		refused error
		kind    error
	}{
		{"the same", pinned(look(at(50), nil), 2), nil, nil, nil},
		{"it does not matter", look(at(50), nil), nil, nil, nil},
		{"added", pinned(look(at(50), nil), 1), nil, ErrPartitionsChanged, nil},
		{"added, and accepted", pinned(look(at(50), nil), 1), trust, nil, ErrPartitionsChanged},
		{"added, and below the log", pinned(look(at(5), nil), 1), trust, ErrBelowLog, nil},
		{"added, and started over", pinned(look(at(5), nil), 1), Policies{ErrPartitionsChanged: TrustStore, ErrBelowLog: StartOver}, nil, ErrBelowLog},
	} {
		if b, refused := tt.v.Begin(tt.p); !errors.Is(refused, tt.refused) || refused == nil && !errors.Is(b.Kind, tt.kind) {
			t.Errorf("%s: %+v, refused: %v", tt.name, b, refused)
		}
	}
}

// Without its store, a partition continues where its own commit is.
func TestWhereAPartitionBeginsWithoutItsStore(t *testing.T) {
	commit := func(metadata string) *Commit { return &Commit{Offset: 40, Epoch: 2, Metadata: metadata} }
	for _, tt := range []struct {
		name    string
		v       Facts
		refused error
		want    int64
	}{
		{"the store's commit", look(nil, commit(ourMark)), nil, 40},
		{"a marked one", look(nil, commit(anID.OpenMark(45))), nil, 40},
		{"another program's", look(nil, commit("kgo-1234")), ErrEmptyStore, 0},
		{"another store's", look(nil, commit(foreign)), ErrForeignStore, 0},
		{"none", look(nil, nil), nil, 10},
		{"this assignment knows the store's offset", look(at(50), commit(ourMark)), nil, 50},
	} {
		if b, refused := tt.v.BeginOpen(nil); !errors.Is(refused, tt.refused) || refused == nil && b.Offset != tt.want {
			t.Errorf("%s: %+v, refused: %v", tt.name, b, refused)
		}
	}
}

func TestCommitMetadataIsGolden(t *testing.T) {
	const want = "hapax:0a0b000000000000000000000000000f:3"
	if ourMark != want {
		t.Errorf("metadata %q, want %q", ourMark, want)
	}
	if a, ours := ParseMetadata(want); !ours || a != anID {
		t.Errorf("%+v, %v", a, ours)
	}
	for _, s := range []string{"", "kgo-1", "hapax:", "hapax:0a:3", "hapax:0a0b000000000000000000000000000f", "hapax:0a0b000000000000000000000000000f:",
		"hapax:0a0b000000000000000000000000000f:-1", "hapax:zz0b000000000000000000000000000f:3", "x" + want} {
		if a, ours := ParseMetadata(s); ours || a != (Author{}) {
			t.Errorf("%q is read as a commit of the adapter: %+v", s, a)
		}
	}
}

func TestOpenMarkIsGolden(t *testing.T) {
	const want = "hapax-open:0a0b000000000000000000000000000f:3:17"
	if got := anID.OpenMark(17); got != want {
		t.Errorf("the mark is %q, want %q", got, want)
	}
	if m := ParseOpenMark(want); m != (OpenMark{true, anID, 17}) {
		t.Errorf("%+v", m)
	}
	if _, ours := ParseMetadata(want); ours {
		t.Error("it is read as a commit of the store")
	}
	for _, s := range []string{"", ourMark, "hapax-open:", "hapax-open:0a:3:1", "hapax-open:0a0b000000000000000000000000000f:3:-1", "hapax-open:0a0b000000000000000000000000000f:3:"} {
		if ParseOpenMark(s).Is {
			t.Errorf("%q is read as a mark", s)
		}
	}
}

func TestWhereAPartitionBeginsThatWasReadWithoutItsStore(t *testing.T) {
	marked := func(by Author, offset int64) *Commit {
		return &Commit{Offset: offset, Epoch: 2, Metadata: by.OpenMark(0)}
	}
	ours, unknown := anID, Author{}
	recreated := inTopic(look(at(50), marked(ours, 60)), [16]byte{9})
	claimed := func(offset, until int64) *Commit {
		return &Commit{Offset: offset, Epoch: 2, Metadata: ours.OpenMark(until)}
	}
	transactional := func(v Facts) Facts { v.Transactional = true; return v }
	for _, tt := range []struct {
		name string
		v    Facts
		kind error
		want int64
	}{
		{"Kafka is ahead", look(at(50), marked(ours, 60)), ErrRanOpen, 60},
		{"the store is ahead", look(at(50), marked(ours, 40)), nil, 50},
		{"they agree", look(at(50), marked(ours, 50)), nil, 50},
		{"the store has nothing", look(nil, marked(ours, 60)), ErrRanOpen, 60},
		{"it was unknown whose store it is", look(at(50), marked(unknown, 60)), ErrRanOpen, 60},
		{"another store", look(at(50), marked(Author{[16]byte{1}, 3}, 60)), ErrForeignStore, isRefused},
		{"an earlier incarnation of the store", look(at(50), marked(Author{aUUID, 2}, 60)), ErrForeignStore, isRefused},
		{"another topic", recreated, ErrRecreated, isRefused},
		{"records were removed", look(at(5), marked(ours, 8)), ErrBelowLog, isRefused},
		{"beyond the log", look(at(50), marked(ours, 101)), ErrAboveLog, isRefused},
		{"claims are not handled", look(at(50), claimed(40, 45)), nil, 50},
		{"claims are not handled, and the mode has changed", transactional(look(at(50), claimed(40, 45))), ErrModeChanged, isRefused},
		{"they are handled", transactional(look(at(50), claimed(45, 45))), nil, 50},
		{"they are not in the store", transactional(look(at(42), claimed(40, 45))), nil, 42},
		{"they are not in the log", transactional(look(at(50), claimed(5, 10))), nil, 50},
	} {
		b, refused := tt.v.Begin(nil)
		if tt.want == isRefused {
			if !errors.Is(refused, tt.kind) {
				t.Errorf("%s: %v, %v", tt.name, b, refused)
			}
			continue
		}
		if refused != nil || b.Offset != tt.want || !errors.Is(b.Kind, tt.kind) {
			t.Errorf("%s: %+v, %v", tt.name, b, refused)
		}
	}
}

func TestTopicWithTheSamePartitionsFollows(t *testing.T) {
	one, other, none := [16]byte{1}, [16]byte{2}, [16]byte{}
	for _, c := range []struct {
		before, now Topic
		follows     bool
	}{
		{Topic{one, 2}, Topic{one, 2}, true},
		{Topic{one, 2}, Topic{one, 3}, false},
		{Topic{one, 3}, Topic{one, 2}, true}, // a broker that has not learned of it yet
		{Topic{one, 2}, Topic{other, 2}, true},
		{Topic{one, 2}, Topic{other, 3}, false},
		{Topic{one, 3}, Topic{other, 2}, false},
		{Topic{none, 2}, Topic{none, 2}, true},
		{Topic{none, 3}, Topic{none, 2}, false},
	} {
		if got := c.now.Follows(c.before); got != c.follows {
			t.Errorf("%v after %v: %v", c.now, c.before, got)
		}
	}
}
