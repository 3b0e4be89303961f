package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storetest"
)

func memEngine(t *testing.T) *engine.Engine {
	t.Helper()
	return openMem(t, storetest.NewMem(engine.Identity{}), engine.Options{})
}

func openMem(t *testing.T, m *storetest.Mem, o engine.Options) *engine.Engine {
	t.Helper()
	eng, err := engine.Open(m, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() }) // of a crashed store it says so
	return eng
}

func ignore(context.Context, *engine.Tx, *Record) error { return nil }
func ignoreOwn(context.Context, *Record) error          { return nil }

func someOptions() Options {
	return Options{Group: "g", Topics: []string{"in"}, Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}}
}

func TestModesThatCouldStickForEverAreRefused(t *testing.T) {
	eng := memEngine(t)
	for _, tt := range []struct {
		name string
		mode Mode
		o    func(*Options)
		want error
	}{
		{"with the work", WithWork{Handle: ignore, DeadLetters: &DeadLetters{}, MaxAttempts: 1}, nil, nil},
		{"no dead letters", WithWork{Handle: ignore, MaxAttempts: 1}, nil, ErrNoDeadLetters},
		{"no limit", WithWork{Handle: ignore, DeadLetters: &DeadLetters{}}, nil, ErrNoAttemptLimit},
		{"negative limit", WithWork{Handle: ignore, DeadLetters: &DeadLetters{}, MaxAttempts: -1}, nil, ErrNoAttemptLimit},
		{"no handler", WithWork{DeadLetters: &DeadLetters{}, MaxAttempts: 1}, nil, ErrNoHandler},
		{"own-commit", OwnCommit{Handle: ignoreOwn}, nil, nil},
		{"own-commit, no handler", OwnCommit{}, nil, ErrNoHandler},
		{"own-commit, dead letters for too old and none", OwnCommit{Handle: ignoreOwn}, func(o *Options) { o.TooOld = DeadLetter }, ErrOption},
		{"own-commit, dead letters for too new and none", OwnCommit{Handle: ignoreOwn}, func(o *Options) { o.TooNew = DeadLetter }, ErrOption},
		{"no mode", nil, nil, ErrOption},
	} {
		o := someOptions()
		if tt.o != nil {
			tt.o(&o)
		}
		if _, err := New(eng, tt.mode, o); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	if _, err := New(nil, OwnCommit{Handle: ignoreOwn}, someOptions()); !errors.Is(err, ErrOption) {
		t.Errorf("no engine: %v", err)
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	eng := memEngine(t)
	client := func(opts ...kgo.Opt) func(*Options) {
		return func(o *Options) { o.Client = append(o.Client, opts...) }
	}
	for name, change := range map[string]func(*Options){
		"Options.Group":                    func(o *Options) { o.Group = "" },
		"Options.Topics":                   func(o *Options) { o.Topics = nil },
		"Options.MaxBatch":                 func(o *Options) { o.MaxBatch = LimitBatch + 1 },
		"Options.MaxBatch is -1":           func(o *Options) { o.MaxBatch = -1 },
		"Options.FirstBackoff":             func(o *Options) { o.FirstBackoff = time.Hour },
		"Options.BatchTime":                func(o *Options) { o.BatchTime = -1 },
		"Options.DrainTimeout":             func(o *Options) { o.DrainTimeout = -1 },
		"Options.ShutdownTimeout":          func(o *Options) { o.ShutdownTimeout = -1 },
		"Options.CommitInterval":           func(o *Options) { o.CommitInterval = -1 },
		"Options.AllowedLateness":          func(o *Options) { o.AllowedLateness = -1 },
		"a policy or Start":                func(o *Options) { o.TooOld = DeadLetter + 1 },
		"Start has no such value":          func(o *Options) { o.Start = Latest + 1 },
		"Positions.BelowLog":               func(o *Options) { o.Positions.BelowLog = TrustStore },
		"Options.Client is empty":          func(o *Options) { o.Client = nil },
		"Options.Client: ":                 client(kgo.RequiredAcks(kgo.LeaderAck())),
		"kgo.ConsumerGroup: set":           client(kgo.ConsumerGroup("x")),
		"kgo.ConsumeTopics: set":           client(kgo.ConsumeTopics("x")),
		"kgo.ConsumePartitions":            client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"x": {0: kgo.NewOffset()}})),
		"kgo.TransactionalID":              client(kgo.TransactionalID("x")),
		"kgo.RequiredAcks":                 client(kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()),
		"kgo.ConsumerGroup: set Options.G": client(kgo.ConsumerGroup("x"), kgo.OnPartitionsRevoked(func(context.Context, *kgo.Client, map[string][]int32) {})),
	} {
		o := someOptions()
		change(&o)
		_, err := New(eng, OwnCommit{Handle: ignoreOwn}, o)
		if err == nil || !strings.Contains(err.Error(), name) || !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClientOptionsOfTheHostAreKept(t *testing.T) {
	o := someOptions()
	o.Client = append(o.Client, kgo.ClientID("mine"), kgo.FetchMaxWait(time.Second))
	o.InstanceID = "one"
	c, err := New(memEngine(t), OwnCommit{Handle: ignoreOwn}, o)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(c.clientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if got := cl.OptValue(kgo.ClientID); got != "mine" {
		t.Errorf("client id %v", got)
	}
	if got := cl.OptValue(kgo.FetchMaxWait); got != time.Second {
		t.Errorf("fetches wait %v", got)
	}
	if got := cl.OptValue(kgo.FetchIsolationLevel); fmt.Sprint(got) != "1" {
		t.Errorf("isolation level %v: aborted records would be read", got)
	}
}

func TestScopeBelongsToOneGroup(t *testing.T) {
	eng := memEngine(t)
	for _, tt := range []struct {
		group  string
		shared bool
		want   error
	}{{"first", false, nil}, {"first", false, nil}, {"second", false, ErrScopeShared}, {"second", true, nil}} {
		o := someOptions()
		o.Group, o.Scope, o.SharedScope = tt.group, "orders", tt.shared
		c, err := New(eng, OwnCommit{Handle: ignoreOwn}, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.bind(t.Context()); !errors.Is(err, tt.want) {
			t.Errorf("group %s, shared %v: %v, want %v", tt.group, tt.shared, err, tt.want)
		}
	}
}

func TestSecretIsTheStores(t *testing.T) {
	eng := memEngine(t)
	var secrets []string
	for range 2 {
		c, err := New(eng, OwnCommit{Handle: ignoreOwn}, someOptions())
		if err == nil {
			err = c.bind(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, string(c.secret))
	}
	if len(secrets[0]) != 32 || secrets[0] != secrets[1] || secrets[0] == strings.Repeat("\x00", 32) {
		t.Errorf("secrets %x", secrets)
	}
}

func TestOptionsThatWouldBuryEverythingAreRefused(t *testing.T) {
	eng, err := engine.Open(storetest.NewMem(engine.Identity{}), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	same := &DeadLetters{Topic: func(topic string) string { return topic }}
	handle := func(context.Context, *engine.Tx, *Record) error { return nil }
	for name, c := range map[string]struct {
		mode Mode
		set  func(*Options)
	}{
		"blank scope":                      {WithWork{Handle: handle, MaxAttempts: 1, DeadLetters: &DeadLetters{}}, func(o *Options) { o.Scope = " " }},
		"long scope":                       {WithWork{Handle: handle, MaxAttempts: 1, DeadLetters: &DeadLetters{}}, func(o *Options) { o.Scope = strings.Repeat("s", 256) }},
		"long group":                       {WithWork{Handle: handle, MaxAttempts: 1, DeadLetters: &DeadLetters{}}, func(o *Options) { o.Group = strings.Repeat("g", 256) }},
		"dead letters to the topic itself": {WithWork{Handle: handle, MaxAttempts: 1, DeadLetters: same}, func(*Options) {}},
	} {
		o := Options{Group: "g", Topics: []string{"in"}, Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}}
		c.set(&o)
		if _, err := New(eng, c.mode, o); !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
