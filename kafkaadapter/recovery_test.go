package kafkaadapter

import (
	"errors"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

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

func TestPositionErrorHasTheStateOfBothSides(t *testing.T) {
	f := &finder{partition: &partition{pos: engine.OffsetKey{Topic: "in", Partition: 1}}}
	v := &resume.Facts{Start: 10, End: 100}
	if e := f.refuse(v, ErrBelowLog); *e != (PositionError{"in", 1, ErrBelowLog, -1, -1, 10, 100, ""}) {
		t.Errorf("an absent value is not -1: %+v", e)
	}
	v.Store, v.Committed = &resume.Offset{Next: 50}, &resume.Commit{Offset: 60, Metadata: "theirs"}
	e := f.refuse(v, ErrForeignStore)
	if *e != (PositionError{"in", 1, ErrForeignStore, 50, 60, 10, 100, "theirs"}) {
		t.Errorf("%+v", e)
	}
	for _, d := range disagreements {
		if text := f.refuse(v, d.kind).Error(); !strings.Contains(text, "Options.Recovery") || !strings.Contains(text, "Recovery[Err"+d.name+"] = ") {
			t.Errorf("the error does not name the policies: %s", text)
		}
	}
}
