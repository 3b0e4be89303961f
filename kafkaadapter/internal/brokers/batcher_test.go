package brokers

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// A held batcher has begun its first batch, of one question, and waits with it.
type held struct {
	Batcher[int, string]
	batches [][]int
	release chan struct{}
}

func hold(t *testing.T, most int) *held {
	h := &held{release: make(chan struct{})}
	h.Most = most
	h.ask(t.Context(), -1)
	kafkatest.Until(t, "the first batch", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.sending && len(h.waiting) == 0
	})
	return h
}

type outcome struct {
	answer string
	err    error
}

// ask asks, and returns when the question waits.
func (h *held) ask(ctx context.Context, q int) <-chan outcome {
	got := make(chan outcome, 1)
	waiting := make(chan struct{})
	go func() {
		close(waiting)
		answer, err := h.Ask(ctx, q, h.send)
		got <- outcome{answer, err}
	}()
	<-waiting
	return got
}

func (h *held) send(batch []*Question[int, string]) {
	<-h.release
	var asked []int
	for _, q := range batch {
		asked = append(asked, q.Ask)
		if q.Answer = fmt.Sprint(q.Ask); q.Ask == 13 {
			q.Err = errUnlucky
		}
	}
	h.batches = append(h.batches, asked)
}

var errUnlucky = errors.New("unlucky")

func (h *held) untilWaiting(t *testing.T, n int) {
	kafkatest.Until(t, "questions that wait", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.waiting) == n
	})
}

func TestQuestionsJoinTheNextBatch(t *testing.T) {
	h := hold(t, 0)
	answers := make(map[int]<-chan outcome)
	for q := range 20 {
		answers[q] = h.ask(t.Context(), q)
	}
	h.untilWaiting(t, 20)
	close(h.release)
	for q, got := range answers {
		o := kafkatest.Receive(t, got)
		if q == 13 {
			if !errors.Is(o.err, errUnlucky) {
				t.Errorf("question 13: %v", o.err)
			}
		} else if o.err != nil || o.answer != fmt.Sprint(q) {
			t.Errorf("question %d: %q, %v", q, o.answer, o.err)
		}
	}
	if len(h.batches) != 2 || len(h.batches[1]) != 20 {
		t.Errorf("batches: %v", h.batches)
	}
}

func TestBatchHasAtMostSoManyQuestions(t *testing.T) {
	h := hold(t, 3)
	var answers []<-chan outcome
	for q := range 7 {
		answers = append(answers, h.ask(t.Context(), q))
	}
	h.untilWaiting(t, 7)
	close(h.release)
	for _, got := range answers {
		kafkatest.Receive(t, got)
	}
	if len(h.batches) != 4 || len(h.batches[1]) != 3 || len(h.batches[2]) != 3 || len(h.batches[3]) != 1 {
		t.Errorf("batches: %v", h.batches)
	}
}

func TestQuestionOfAnEndedContextIsLeftOut(t *testing.T) {
	h := hold(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	gone := []<-chan outcome{h.ask(ctx, 0), h.ask(ctx, 1)}
	h.untilWaiting(t, 2)
	stays := h.ask(t.Context(), 2)
	h.untilWaiting(t, 3)
	cancel()
	for _, got := range gone {
		if o := kafkatest.Receive(t, got); !errors.Is(o.err, context.Canceled) {
			t.Errorf("asked with a context that has ended: %+v", o)
		}
	}
	close(h.release)
	if o := kafkatest.Receive(t, stays); o.err != nil {
		t.Error(o.err)
	}
	if len(h.batches) != 2 || len(h.batches[1]) != 1 {
		t.Errorf("batches: %v", h.batches)
	}
}
