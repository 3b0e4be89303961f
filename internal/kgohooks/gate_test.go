package kgohooks

import (
	"context"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

type polls struct{ n int }

func (p *polls) OnNewClient(*kgo.Client)     {}
func (p *polls) OnPollStart(context.Context) { p.n++ }

// The client calls some hooks in goroutines that may outlive it.
func TestHookGetsNoCallAfterTheEndOfItsOwner(t *testing.T) {
	var o Owner
	p := &polls{}
	s := o.share(nil, p).(kgo.HookPollStart)
	s.OnPollStart(t.Context())
	o.Close()
	s.OnPollStart(t.Context())
	if o.share(nil, p).(kgo.HookPollStart).OnPollStart(t.Context()); p.n != 2 {
		t.Errorf("the hook got %d calls, want 1 before and 1 of the next owner's client", p.n)
	}
}
