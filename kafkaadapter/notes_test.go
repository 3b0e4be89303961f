package kafkaadapter

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/telemetry"
)

// logged returns the lines of the log of a batch's notes.
func logged(notes []note) []string {
	var l logs
	o := telemetry.Options{}
	logNotes(context.Background(), slog.New(slog.NewTextHandler(&l, nil)), &o, notes)
	return strings.Split(strings.TrimSpace(string(l.all)), "\n")
}

func rejected(offset int64) note {
	return note{rec: &kgo.Record{Offset: offset}, event: engine.Event{ID: fmt.Appendf(nil, "e%d", offset)}, verdict: engine.TooOld, policy: "reject"}
}

func TestEachDroppedRecordLiesInANamedRange(t *testing.T) {
	var notes []note
	for i := range int64(500) {
		n := rejected(i)
		if i >= 300 && i%2 == 0 {
			n.policy = "dead_letter"
		}
		notes = append(notes, n)
	}
	lines := logged(notes)
	if len(lines) != maxNotes+2 {
		t.Fatalf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	for _, want := range []string{"rejected", "records=384", "offsets=16-299,301,303,", "-499 ", "first_id=e16", "last_id=e499", "too_old"} {
		if !strings.Contains(lines[maxNotes], want) {
			t.Errorf("the line lacks %s: %s", want, lines[maxNotes])
		}
	}
	for _, want := range []string{"record became a dead letter", "records=100", "offsets=300,302,", "-498 ", "first_id=e300", "last_id=e498"} {
		if !strings.Contains(lines[maxNotes+1], want) {
			t.Errorf("the line lacks %s: %s", want, lines[maxNotes+1])
		}
	}
}

func TestFewDroppedRecordsAreLoggedOneByOne(t *testing.T) {
	var notes []note
	for i := range int64(maxNotes) {
		notes = append(notes, rejected(i))
	}
	if lines := logged(notes); len(lines) != maxNotes || !strings.Contains(lines[maxNotes-1], "offset=15 id=e15") {
		t.Errorf("%q", lines)
	}
}

func TestPatternIsNoTopic(t *testing.T) {
	for _, topic := range []string{"pay.*", "^pay", "", "pay ment", strings.Repeat("a", 250)} {
		o := someOptions()
		o.Routes[0].Topics = []string{topic}
		if _, err := New(memEngine(t), o); err == nil || !strings.Contains(err.Error(), "Topics") {
			t.Errorf("%q: %v", topic, err)
		}
	}
	o := someOptions()
	o.Routes[0].Topics = []string{"pay.ments_1-x", strings.Repeat("a", 249)}
	if _, err := New(memEngine(t), o); err != nil {
		t.Error(err)
	}
}
