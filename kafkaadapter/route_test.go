package kafkaadapter

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// Two routes differ in all of their settings: the mode, the scope, the identification and the dead
// letters.
func TestEachRouteHasItsOwnHandlerAndPolicies(t *testing.T) {
	r := newRig(t, 1)
	notices := r.topic + "-notices"
	r.CreateNamed(t, notices, 1, nil)
	r.CreateNamed(t, notices+"-dead", 1, nil)
	r.send(t, 0, "a", "poison", "b")
	notice := func(headers ...kgo.RecordHeader) *kgo.Record {
		return &kgo.Record{Topic: notices, Value: []byte("notice"), Headers: headers}
	}
	key := kgo.RecordHeader{Key: "key", Value: []byte("a")} // an id of the other topic
	r.Produce(t, notice(key), notice(), notice(key))
	m := r.start(t, r.work(1, failing(errHandler, "poison")), func(o *Options) {
		o.Routes = append(o.Routes, Route{
			Topics: []string{notices},
			Mode: AtMostOnce(func(ctx context.Context, rec *Record) error {
				r.note(ctx, rec)
				return errHandler // lost, and not retried
			}),
			Policies:    Policies{TooOld: Reject, TooNew: Reject},
			Scope:       "notices",
			Identify:    identify.Rules{IDHeaders: []string{"key"}, NoPosition: true},
			DeadLetters: &deadletter.Options{Topic: func(topic string) string { return topic + "-dead" }},
		})
	})
	r.untilStored(t, 0, 3)
	dead := kafkatest.Consume(t, r.Client(t, kgo.ConsumeTopics(notices+"-dead"), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart())), 1)[0]
	r.UntilCommitted(t, r.group, notices, 0, 3)
	m.stop(t)
	got := map[string][]string{}
	for _, x := range r.handled() {
		got[x.topic] = append(got[x.topic], x.id)
	}
	if !slices.Equal(got[r.topic], []string{"a", "poison", "b"}) || !slices.Equal(got[notices], []string{"a"}) {
		t.Errorf("handled %q", got)
	}
	if string(r.letters(t, 1)[0].Value) != "value-poison" || values(dead)["hapax_dlt_scope"] != "notices" {
		t.Errorf("dead letter %q", dead.Headers)
	}
}

func TestEachScopeOfARouteBelongsToOneGroup(t *testing.T) {
	eng := memEngine(t)
	for _, tt := range []struct {
		group string
		want  error
	}{{"first", nil}, {"second", ErrScopeShared}} {
		o := someOptions()
		o.Group = tt.group
		o.Routes[0].Scope = "mine-" + tt.group
		o.Routes = append(o.Routes, o.Routes[0])
		o.Routes[1].Topics, o.Routes[1].Scope = []string{"other"}, "theirs"
		c, err := New(eng, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.store.connect(t.Context()); !errors.Is(err, tt.want) {
			t.Errorf("group %s: %v, want %v", tt.group, err, tt.want)
		}
	}
}
