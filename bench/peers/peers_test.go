package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/bench/peers/claimer"
	"github.com/hapax-dev/hapax/bench/peers/consumer"
	"github.com/hapax-dev/hapax/bench/peers/servers"
	"github.com/hapax-dev/hapax/bench/peers/streams"
	"github.com/hapax-dev/hapax/bench/report"
)

func TestMain(m *testing.M) {
	if code, ran := childMain(os.Args[1:]); ran {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// cacheIn names a directory for built programs, such as .peers of the repository.
const cacheIn = "HAPAX_PEERS"

// needServer skips a test that needs real servers unless it is asked for.
func needServer(t *testing.T) {
	t.Helper()
	if os.Getenv(cacheIn) == "" {
		t.Skip("set " + cacheIn + " to a directory for built programs to run it with a real Redis and a real Postgres")
	}
}

// openDir is a directory that a server which runs as another user can reach; those of t.TempDir it
// cannot.
func openDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "peers-test-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// newConsuming returns a run over a topic of a broker inside this process.
func newConsuming(t *testing.T) *consuming {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return newConsumingOn(t, cluster.ListenAddrs())
}

func newConsumingOn(t *testing.T, brokers []string) *consuming {
	r := &consuming{consumersFlags: consumersFlags{Records: 6000}, g: &cli{Dir: openDir(t), Cache: os.Getenv(cacheIn)}}
	if err := r.open(t.Context(), brokers); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var err error
		if r.close(&err); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestConsumersAreRight(t *testing.T) {
	r := newConsuming(t)
	for _, c := range consumer.Contenders {
		if c.Brokers { // they have a test of their own
			continue
		}
		for _, w := range c.Works {
			t.Run(c.Name+"/"+string(w), func(t *testing.T) {
				if c.Server != nil {
					needServer(t)
				}
				o, err := r.one(t.Context(), &c, w, noKill)
				if err != nil || o.wrong != "" || o.perS <= 0 {
					t.Errorf("%+v, %v", o, err)
				}
			})
		}
	}
}

func TestConsumersThatAreKilledAreRight(t *testing.T) {
	r := newConsuming(t)
	for _, c := range consumer.Contenders {
		if c.Brokers || c.Name == "map" || c.Name == "redis" || c.Name == "redis-always" { // the last three may be wrong
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			if c.Server != nil {
				needServer(t)
			}
			if o, err := r.one(t.Context(), &c, consumer.Shared, killProcess); err != nil || o.wrong != "" {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
}

// TestConsumersInTheBrokersAreRight needs a real Kafka: the one inside this process is not enough
// for Kafka Streams.
func TestConsumersInTheBrokersAreRight(t *testing.T) {
	needServer(t)
	b, err := startKafka(t.Context(), os.Getenv(cacheIn))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.end(context.Background()) })
	r := newConsumingOn(t, []string{b.address})
	r.broker = b
	for _, c := range consumer.Contenders {
		if !c.Brokers {
			continue
		}
		for _, w := range c.Works {
			t.Run(c.Name+"/"+string(w), func(t *testing.T) {
				o, err := r.one(t.Context(), &c, w, noKill)
				if err != nil || o.wrong != "" || o.perS <= 0 || o.cpu <= 0 {
					t.Errorf("%+v, %v", o, err)
				}
			})
		}
		for _, k := range []kill{killProcess, killBoth} {
			t.Run(c.Name+"/"+k.String(), func(t *testing.T) {
				if o, err := r.one(t.Context(), &c, consumer.Shared, k); err != nil || o.wrong != "" {
					t.Errorf("%+v, %v", o, err)
				}
			})
		}
	}
}

func TestCommandLines(t *testing.T) {
	parse := func(args ...string) (c cli) {
		p, err := kong.New(&c, variables(t.TempDir()))
		if err == nil {
			_, err = p.Parse(args)
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := parse(); c.Command != "all" || c.Consumers.Records != 500_000 || !c.Consumers.Kill || c.Claims.IDs[0] != 2_000_000 {
		t.Errorf("without arguments: %+v", c)
	}
	c := parse("--only", "map,redis", "consumers", "--no-kill", "--records", "1000")
	if c.Command != "consumers" || c.Consumers.Kill || c.Consumers.Records != 1000 || !c.wanted("redis") || c.wanted("hapax") {
		t.Errorf("%+v", c)
	}
	c = parse("claims", "--ids", "1000000,3000000", "--quick", "--in-flight", "1")
	if c.hurry(); c.Command != "claims" || c.Claims.IDs[0] != 1_000_000 || c.Claims.IDs[1] != 1_000_000 || len(c.Claims.InFlight) != 1 || c.Claims.TuneSeconds != 1 || c.Consumers.Records != 200_000 {
		t.Errorf("quick: %+v", c)
	}
}

func TestConsumerWithoutResultIsEnded(t *testing.T) {
	r := newConsuming(t)
	r.Limit = time.Nanosecond
	c := consumer.Contenders[0]
	o, err := r.limited(t.Context(), &c, consumer.Claims, noKill)
	if err != nil || o.wrong != "no result after 1ns" {
		t.Errorf("%+v, %v", o, err)
	}
	r.Limit = runLimit
	if o, err := r.limited(t.Context(), &c, consumer.Claims, noKill); err != nil || o.wrong != "" {
		t.Errorf("within the limit: %+v, %v", o, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.limited(ctx, &c, consumer.Claims, noKill); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted run: %v", err)
	}
}

func TestWrongConsumerIsSeen(t *testing.T) {
	r := &consuming{events: 2, balances: map[int]int64{0: -5, 1: 5}}
	for want, got := range map[string]consumer.Result{
		"":                      {Claims: 2, Balances: map[int]int64{0: -5, 1: 5}},
		"1 claims for 2 events": {Claims: 1, Balances: map[int]int64{0: -5, 1: 5}},
		"1 of 2 balances":       {Claims: 2, Balances: map[int]int64{0: -5, 1: 6}},
		"2 of 2 balances":       {Claims: 2},
	} {
		if wrong := r.check(consumer.Shared, &got); wrong != want {
			t.Errorf("%+v: %q, want %q", got, wrong, want)
		}
	}
}

func newClaiming(t *testing.T) *claiming {
	src, err := traffic.NewSource(1, traffic.UUIDv4, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	return &claiming{
		claimsFlags: claimsFlags{IDs: []int{5000}}, g: &cli{Dir: openDir(t), Cache: os.Getenv(cacheIn)}, log: traffic.Log{Source: src, Dup: 0.3},
	}
}

func TestClaimsAreRight(t *testing.T) {
	r := newClaiming(t)
	for _, c := range claimer.Contenders {
		settings := c.Settings
		if len(settings) == 0 {
			settings = []string{""}
		}
		for _, s := range settings {
			t.Run(c.Name+"/"+s, func(t *testing.T) {
				if c.Server != nil {
					needServer(t)
				}
				o, err := r.one(t.Context(), &c, choice{s, 100, 3}, 5000, 0)
				if err != nil || o.wrong != "" || len(o.samples) == 0 {
					t.Errorf("%+v, %v", o, err)
				}
			})
		}
	}
}

func TestThereIsARowForEachNumberOfIDs(t *testing.T) {
	for limit, want := range map[float64]string{
		0:    "go-map 1000 ids: 1000, go-map 5000 ids: 5000, hapax 1000 ids: 1000, hapax 5000 ids: 5000, ",
		1e-9: "go-map 1000 ids: 0, go-map 5000 ids: 0, hapax 1000 ids: 0, hapax 5000 ids: 0, ", // the time is over before the first batch
	} {
		r := newClaiming(t)
		r.g.Only, r.g.Rounds, r.IDs, r.Batch, r.InFlight, r.MaxSeconds = []string{"hapax", "go-map"}, 1, []int{1000, 5000}, []int{100}, []int{2}, limit
		var tb table
		entries, err := r.entries(t.Context(), &tb)
		for i := range entries {
			if kills := entries[i].kills; (len(kills) == 1) != (i%2 == 0) {
				t.Errorf("%s is killed: %v", entries[i].row.Work, kills)
			}
			entries[i].kills = nil
		}
		if err == nil {
			err = r.g.rounds(t.Context(), entries)
		}
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, m := range tb.rows {
			o := m.outcomes[0]
			got += fmt.Sprintf("%s %s: %d, ", m.Name, m.Work, o.asked)
			if o.wrong != "" || len(o.samples) == 0 {
				t.Errorf("%+v", o)
			}
		}
		if got != want {
			t.Errorf("%v seconds: %q, want %q", limit, got, want)
		}
	}
}

func TestAbsentContenderIsLeftOut(t *testing.T) {
	var tb table
	runs := 0
	entries := []entry{
		{row: tb.add(report.Row{Name: "absent"}), kills: []kill{killProcess}, run: func(context.Context, kill) (outcome, error) {
			runs++
			return outcome{}, fmt.Errorf("looking: %w", servers.ErrAbsent)
		}},
		{row: tb.add(report.Row{Name: "present"}), kills: []kill{killProcess}, run: func(_ context.Context, k kill) (outcome, error) {
			return outcome{perS: 1, wrong: map[kill]string{killProcess: "1 lost"}[k]}, nil
		}},
	}
	if err := (&cli{Rounds: 2}).rounds(t.Context(), entries); err != nil || runs != 1 {
		t.Errorf("%d runs of the absent one, %v", runs, err)
	}
	if absent, present := tb.rows[0], tb.rows[1]; len(absent.outcomes) > 0 || len(present.outcomes) != 2 || present.Killed != "WRONG: 1 lost" {
		t.Errorf("%+v, %+v", absent, present)
	}
	entries[1].run = func(context.Context, kill) (outcome, error) { return outcome{}, errLimit }
	if err := (&cli{Rounds: 1}).rounds(t.Context(), entries); !errors.Is(err, errLimit) || !strings.Contains(err.Error(), "present") {
		t.Errorf("the error of a run is told as %v", err)
	}
}

// TestKillIsSeen has its control in it: what keeps claims in memory alone has lost them.
func TestKillIsSeen(t *testing.T) {
	r := newClaiming(t)
	for _, c := range claimer.Contenders {
		t.Run(c.Name, func(t *testing.T) {
			k := killProcess
			if c.Server != nil {
				needServer(t)
				k = killBoth
			}
			o, err := r.kill(t.Context(), &c, choice{batch: 100}, 5000, k)
			if err != nil {
				t.Fatal(err)
			}
			if loses := c.Durability == "nothing"; loses != (o.wrong != "") {
				t.Errorf("durability %q: %s", c.Durability, o.wrongOrRight())
			}
		})
	}
}

func TestServerThatIsNotInstalledIsLeftOut(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := servers.Redis(servers.RedisNone)(context.Background(), servers.Options{Dir: t.TempDir()})
	if !errors.Is(err, servers.ErrAbsent) || !strings.Contains(err.Error(), "install the Debian package redis-server") {
		t.Error(err)
	}
}

func TestProgramThatCannotBeBuiltIsLeftOut(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := streams.Build(t.Context(), servers.Options{Cache: t.TempDir()})
	if !errors.Is(err, servers.ErrAbsent) || !strings.Contains(err.Error(), "install the Debian package default-jdk-headless") {
		t.Error(err)
	}
}

func TestRatioIsTheMedianOfTheRounds(t *testing.T) {
	a := &measured{outcomes: []outcome{{perS: 10}, {perS: 30}, {perS: 20}}}
	b := &measured{outcomes: []outcome{{perS: 10}, {perS: 10}, {perS: 10}}}
	if got := ratio(a, b); got != 2 {
		t.Error(got)
	}
}
