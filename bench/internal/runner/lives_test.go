package runner

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// A steps work passes its gate step by step.
type steps struct {
	Gate  GateOrder
	Steps int
	Fails bool
}

func (s *steps) Do(say *Voice) error {
	g := NewGate(s.Gate, say)
	g.Open(0)
	for range s.Steps {
		g.Pass(1)
	}
	if s.Fails {
		return errors.New("out of\nluck")
	}
	return nil
}

// TestMain lets the test's binary be the process that runs start and kill.
func TestMain(m *testing.M) {
	if code, ran := Main(os.Args[1:], &steps{}); ran {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func TestProcessIsKilledAtItsGateAndStartedAgain(t *testing.T) {
	lives := 0
	l := Lives{Kills: []Kill{{Gate: GateOrder{Here: 3, Wait: 3}}, {Gate: GateOrder{Here: 0, Wait: 5}}}, Silence: time.Minute}
	l.Next = func(k Kill) Work {
		lives++
		return &steps{Gate: k.Gate, Steps: 10}
	}
	l.Hear = map[string]Hearing{"from": Hears(func(uint64) error { return nil })}
	if err := l.Run(t.Context()); err != nil || l.Killed != 2 || lives != 3 {
		t.Errorf("%d of %d processes were killed: %v", l.Killed, lives, err)
	}
}

func TestProcessThatFailsEndsTheRun(t *testing.T) {
	for _, tt := range []struct {
		work  Work
		hear  Hearing
		kills []Kill
		want  string
	}{
		{&steps{Gate: Never.Gate, Fails: true}, Hears(func(uint64) error { return nil }), nil, "failed: out of luck"},
		{&steps{Gate: Never.Gate}, Hears(func(uint64) error { return nil }), []Kill{Never.at(5)}, "before its kill 1"},
		{&steps{Gate: Never.Gate}, Hears(func(string) error { return nil }), nil, `said "from" 0: json`},
		{&steps{Gate: Never.Gate}, nil, nil, `said "from" 0`},
		{&steps{Gate: GateOrder{Here: 9, Wait: 1}, Steps: 3}, Hears(func(uint64) error { return nil }), nil, "no progress"},
	} {
		l := Lives{Kills: tt.kills, Next: func(Kill) Work { return tt.work }, Hear: map[string]Hearing{"from": tt.hear}, Silence: 100 * time.Millisecond}
		if tt.want != "no progress" {
			l.Silence = time.Minute
		}
		if err := l.Run(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.work, err, tt.want)
		}
	}
}

func (k Kill) at(here uint64) Kill {
	k.Gate.Here = here
	return k
}

func TestKilledProcessIsHeardToItsLastWholeLine(t *testing.T) {
	advance, line, err := wholeLines([]byte("ack 0 0 c\nack 0 1"), true)
	if advance != 10 || string(line) != "ack 0 0 c" || err != nil {
		t.Errorf("%d %q %v", advance, line, err)
	}
	if advance, line, err = wholeLines([]byte("ack 0 1"), true); advance != 7 || line != nil || err != nil {
		t.Errorf("%d %q %v", advance, line, err)
	}
}
