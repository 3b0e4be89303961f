package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

func memEngine(t *testing.T) *engine.Engine {
	t.Helper()
	return openMem(t, storetest.NewMem(storage.Identity{}), engine.Options{})
}

func openMem(t testing.TB, m *storetest.Mem, o engine.Options) *engine.Engine {
	t.Helper()
	return openEngine(t, m, o)
}

func openEngine(t testing.TB, s storage.Store, o engine.Options) *engine.Engine {
	t.Helper()
	eng, err := engine.Open(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() }) // of a crashed store it says so
	return eng
}

func ignore(context.Context, *engine.Tx, *Record) error { return nil }
func ignoreOwn(context.Context, *Record) error          { return nil }

func someOptions() Options {
	return Options{
		Group: "g", Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")},
		Routes: []Route{{Topics: []string{"in"}, Mode: AtMostOnce(ignoreOwn), Policies: RejectUnclaimable()}},
	}
}

func TestModesThatCouldStopForeverAreRejected(t *testing.T) {
	eng := memEngine(t)
	letters := &deadletter.Options{}
	for _, tt := range []struct {
		name  string
		route Route
		want  error
	}{
		{"transactional", Route{Mode: Transactional{Handle: ignore, MaxAttempts: 1}, DeadLetters: letters}, nil},
		{"no dead letters", Route{Mode: Transactional{Handle: ignore, MaxAttempts: 1}}, ErrNoDeadLetters},
		{"no limit", Route{Mode: Transactional{Handle: ignore}, DeadLetters: letters}, ErrNoAttemptLimit},
		{"negative limit", Route{Mode: Transactional{Handle: ignore, MaxAttempts: -1}, DeadLetters: letters}, ErrNoAttemptLimit},
		{"no handler", Route{Mode: Transactional{MaxAttempts: 1}, DeadLetters: letters}, ErrNoHandler},
		{"two handlers", Route{Mode: Transactional{Handle: ignore, HandleBatch: ignoreBatch, MaxAttempts: 1}, DeadLetters: letters}, ErrTwoHandlers},
		{"batches", Route{Mode: Transactional{HandleBatch: ignoreBatch, MaxAttempts: 1}, DeadLetters: letters}, nil},
		{"at most once, rejecting", Route{Mode: AtMostOnce(ignoreOwn), Policies: Policies{TooOld: Reject, TooNew: Process, Undecodable: Reject}}, nil},
		{"at most once, dead letters", Route{Mode: AtMostOnce(ignoreOwn), DeadLetters: letters}, nil},
		{"at most once, no policies", Route{Mode: AtMostOnce(ignoreOwn)}, ErrOption},
		{"at most once, no policy for too old", Route{Mode: AtMostOnce(ignoreOwn), Policies: Policies{TooNew: Reject, Undecodable: Reject}}, ErrOption},
		{"at most once, no policy for too new", Route{Mode: AtMostOnce(ignoreOwn), Policies: Policies{TooOld: Reject, Undecodable: Reject}}, ErrOption},
		{"at most once, no policy for undecodable", Route{Mode: AtMostOnce(ignoreOwn), Policies: Policies{TooOld: Reject, TooNew: Reject}}, ErrOption},
		{"at most once, no handler", Route{Mode: AtMostOnce(nil)}, ErrNoHandler},
		{"at most once, dead letters for too old without a topic", Route{Mode: AtMostOnce(ignoreOwn), Policies: Policies{TooOld: DeadLetter, TooNew: Reject, Undecodable: Reject}}, ErrOption},
		{"at most once, dead letters for too new without a topic", Route{Mode: AtMostOnce(ignoreOwn), Policies: Policies{TooOld: Reject, TooNew: DeadLetter, Undecodable: Reject}}, ErrOption},
		{"batches side by side", Route{Mode: Transactional{HandleBatch: ignoreBatch, MaxAttempts: 1}, DeadLetters: letters, Concurrency: Concurrency{handlers: 2}}, ErrOption},
		{"no mode", Route{}, ErrOption},
	} {
		o := someOptions()
		tt.route.Topics = []string{"in"}
		o.Routes = []Route{tt.route}
		if _, err := New(eng, o); !errors.Is(err, tt.want) || err != nil && !strings.Contains(err.Error(), "Options.Routes[0]") {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	if _, err := New(nil, someOptions()); !errors.Is(err, ErrOption) {
		t.Errorf("no engine: %v", err)
	}
}

// A somePool is a pool of records.
type somePool struct{}

func (somePool) GetRecords(n int) []kgo.Record { return make([]kgo.Record, n) }
func (somePool) PutRecords([]kgo.Record)       {}

func TestOptionsThatCannotWorkAreRejected(t *testing.T) {
	eng := memEngine(t)
	client := func(opts ...kgo.Opt) func(*Options) {
		return func(o *Options) { o.Client = append(o.Client, opts...) }
	}
	for name, change := range map[string]func(*Options){
		"Options.Group":                       func(o *Options) { o.Group = "" },
		"Options.Routes is empty":             func(o *Options) { o.Routes = nil },
		"Options.Routes[0].Topics":            func(o *Options) { o.Routes[0].Topics = nil },
		`Options.Routes[1].Topics has "in"`:   func(o *Options) { o.Routes = append(o.Routes, o.Routes[0]) },
		"Options.MaxBatch":                    func(o *Options) { o.MaxBatch = MaxBatchLimit + 1 },
		"Options.MaxBatch is -1":              func(o *Options) { o.MaxBatch = -1 },
		"Options.DrainTimeout":                func(o *Options) { o.DrainTimeout = -1 },
		"Options.SilenceTimeout":              func(o *Options) { o.SilenceTimeout = -1 },
		"Options.Routes[0].Window":            func(o *Options) { o.Routes[0].Window = time.Microsecond },
		"Routes[0].Window: hapax: event":      func(o *Options) { o.Routes[0].Window = 1000 * time.Hour },
		"Concurrency is Parallel(-1)":         func(o *Options) { o.Routes[0].Concurrency.handlers = -1 },
		"Concurrency is Parallel(1025)":       func(o *Options) { o.Routes[0].Concurrency.handlers = MaxHandlers + 1 },
		"Concurrency has a key":               func(o *Options) { o.Routes[0].Concurrency.key = func(*Record) []byte { return nil } },
		"Policies[TooOld] cannot be Policy(":  func(o *Options) { o.Routes[0].Policies[TooOld] = StopBefore + 1 },
		"[0].Policies[TooNew] is not set":     func(o *Options) { o.Routes[0].Policies[TooNew] = 0 },
		"[Undecodable] cannot be Process":     func(o *Options) { o.Routes[0].Policies[Undecodable] = Process },
		"[LargeBatch] cannot be DeadLetter":   func(o *Options) { o.Routes[0].Policies[LargeBatch] = DeadLetter },
		"Policies has Case(8)":                func(o *Options) { o.Routes[0].Policies[Failed+1] = Reject },
		"Policies[Undecodable] is DeadLetter": func(o *Options) { o.Routes[0].Policies[Undecodable] = DeadLetter },
		"Options.Routes[0].Start has no":      func(o *Options) { o.Routes[0].Start = Latest + 1 },
		"Recovery[ErrBelowLog]":               func(o *Options) { o.Recovery = Recovery{ErrBelowLog: TrustStore} },
		"Options.Client is empty":             func(o *Options) { o.Client = nil },
		"Options.Client: ":                    client(kgo.RequiredAcks(kgo.LeaderAck())),
		"kgo.ConsumerGroup: set":              client(kgo.ConsumerGroup("x")),
		"kgo.ConsumeTopics: set":              client(kgo.ConsumeTopics("x")),
		"kgo.ConsumeRegex: name":              client(kgo.ConsumeRegex()),
		"kgo.ConsumeStartOffset: set Route":   client(kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd())),
		"kgo.ConsumeResetOffset: set Opt":     client(kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd())),
		"kgo.Balancers: it has":               client(kgo.Balancers(kgo.RangeBalancer())),
		"kgo.ServerSideBalancer: set":         client(kgo.ServerSideBalancer()),
		"kgo.Rack: the adapter compares":      client(kgo.Rack("a")),
		"kgo.ConsumePartitions":               client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"x": {0: kgo.NewOffset()}})),
		"kgo.TransactionalID":                 client(kgo.TransactionalID("x")),
		"kgo.ManualFlushing":                  client(kgo.ManualFlushing()),
		"kgo.DefaultProduceTopicAlways":       client(kgo.DefaultProduceTopic("x"), kgo.DefaultProduceTopicAlways()),
		"kgo.FetchIsolationLevel: the":        client(kgo.FetchIsolationLevel(kgo.ReadCommitted())),
		"kgo.ProducerLinger: a partition":     client(kgo.ProducerLinger(0)),
		"kgo.MaxBufferedBytes: the client":    client(kgo.MaxBufferedBytes(100)),
		"kgo.WithPools: handlers get":         client(kgo.WithPools(somePool{})),
		"kgo.RequiredAcks":                    client(kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()),
		"kgo.ConsumerGroup: set Options.G":    client(kgo.ConsumerGroup("x"), kgo.OnPartitionsRevoked(func(context.Context, *kgo.Client, map[string][]int32) {})),
	} {
		o := someOptions()
		change(&o)
		_, err := New(eng, o)
		if err == nil || !strings.Contains(err.Error(), name) || !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClientOptionsOfTheApplicationAreKept(t *testing.T) {
	o := someOptions()
	o.Client = append(o.Client, kgo.ClientID("mine"), kgo.FetchMaxWait(time.Second))
	o.Membership.instanceID = "one"
	c, err := New(memEngine(t), o)
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
		o.Group, o.Routes[0].Scope, o.Routes[0].SharedScope = tt.group, "orders", tt.shared
		c, err := New(eng, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.store.connect(t.Context()); !errors.Is(err, tt.want) {
			t.Errorf("group %s, shared %v: %v, want %v", tt.group, tt.shared, err, tt.want)
		}
	}
}

func TestSecretIsThatOfTheStore(t *testing.T) {
	eng := memEngine(t)
	var secrets []string
	for range 2 {
		c, err := New(eng, someOptions())
		if err == nil {
			err = c.store.connect(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		l, _ := c.shared.links.get()
		secrets = append(secrets, string(l.secrets.Bytes()))
	}
	if len(secrets[0]) != 32 || secrets[0] != secrets[1] || secrets[0] == strings.Repeat("\x00", 32) {
		t.Errorf("secrets %x", secrets)
	}
}

func TestOptionsThatWouldDeadLetterEverythingAreRejected(t *testing.T) {
	eng := memEngine(t)
	same := &deadletter.Options{Topic: func(topic string) string { return topic }}
	for name, set := range map[string]func(*Options){
		"blank scope":                      func(o *Options) { o.Routes[0].Scope = " " },
		"long scope":                       func(o *Options) { o.Routes[0].Scope = strings.Repeat("s", 256) },
		"long group":                       func(o *Options) { o.Group = strings.Repeat("g", 256) },
		"dead letters to the topic itself": func(o *Options) { o.Routes[0].DeadLetters = same },
		"dead letters to another route": func(o *Options) {
			o.Routes = append(o.Routes, o.Routes[0])
			o.Routes[1].Topics, o.Routes[0].DeadLetters = []string{"in-dlt"}, &deadletter.Options{}
		},
	} {
		o := someOptions()
		set(&o)
		if _, err := New(eng, o); !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func ignoreBatch(context.Context, *engine.Tx, []*Record) error { return nil }

func TestModeThatIsAPointerIsRejected(t *testing.T) {
	r := newRig(t, 1)
	work, noting := r.work(1, nil), r.noting()
	for _, mode := range []Mode{&work, &noting, (*AtMostOnce)(nil), (*Transactional)(nil)} {
		o := r.options(noting)
		withDeadLetters(&o)
		o.Routes[0].Mode = mode
		if _, err := New(r.eng, o); !errors.Is(err, ErrOption) {
			t.Errorf("%T: %v", mode, err)
		}
	}
}

// Options, and all that they hold, are what a user of the package must learn.
func TestOptionsHaveFewFields(t *testing.T) {
	fields, seen := 0, map[reflect.Type]bool{}
	var count func(reflect.Type)
	count = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] || !strings.HasPrefix(typ.PkgPath(), "github.com/hapax-dev/hapax") {
			return
		}
		seen[typ] = true
		for i := range typ.NumField() {
			if f := typ.Field(i); f.IsExported() {
				fields++
				count(f.Type)
			}
		}
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[Options](), reflect.TypeFor[AtMostOnce](), reflect.TypeFor[Transactional]()} {
		count(typ)
	}
	if fields > 45+7 || len(seen) > 9+1 {
		t.Errorf("%d fields in %d structs: %v", fields, len(seen), slices.Collect(maps.Keys(seen)))
	}
}
