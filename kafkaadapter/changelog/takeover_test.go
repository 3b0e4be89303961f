package changelog

import (
	"errors"
	"testing"

	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func TestAnotherClientTakesOver(t *testing.T) {
	b, first, topic := preparedTopic(t, kafkatest.Options{}, 2)
	s := open(t, first, topic, 1, newCopies())
	if err := apply(s, 20); err != nil {
		t.Fatal(err)
	}
	second := connect(t, b, Options{})
	copies := newCopies()
	next := open(t, second, topic, 1, copies)
	if n := next.Restore().Batches; n != 20 || lastOf(next) != 20 || next.Identity() != s.Identity() {
		t.Errorf("it has restored %d batches, the last one is %d", n, lastOf(next))
	}
	if err := apply(s, 21); !errors.Is(err, replica.ErrFenced) {
		t.Errorf("the former owner: %v", err)
	}
	if err := apply(next, 30); err != nil {
		t.Fatal(err)
	}
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, first, topic, 1, copies)
	if again.Restore().Batches != 0 || lastOf(again) != 30 {
		t.Errorf("a copy that is up to date: %+v, the last batch is %d", again.Restore(), lastOf(again))
	}
}
