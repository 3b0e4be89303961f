package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/hapax-dev/hapax/bench/peers/claimer"
	"github.com/hapax-dev/hapax/bench/peers/consumer"
	"github.com/hapax-dev/hapax/bench/peers/servers"
	"github.com/hapax-dev/hapax/bench/peers/streams"
	"github.com/hapax-dev/hapax/bench/peers/traffic"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == childArg {
		os.Exit(childMain(os.Args[2]))
	}
	os.Exit(m.Run())
}

// serversIn names a directory for unpacked servers, such as .peers of the repository.
const serversIn = "HAPAX_PEERS"

// needServer skips a test that needs real servers unless it is asked for.
func needServer(t *testing.T) {
	t.Helper()
	if os.Getenv(serversIn) == "" {
		t.Skip("set " + serversIn + " to a directory for unpacked servers to run it with a real Redis and a real Postgres")
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
	log := traffic.Log{Seed: 1, N: 6000, Dup: 0.3, Accounts: traffic.DefaultAccounts}
	topic, err := newTopic(t.Context(), brokers, &log, 3)
	if err != nil {
		t.Fatal(err)
	}
	r := &consuming{consumersCmd: &consumersCmd{Records: log.N, Dup: log.Dup}, g: &cli{Dir: openDir(t), Cache: os.Getenv(serversIn), Install: true}, topic: topic}
	t.Cleanup(r.removeTopics)
	r.events, r.balances = log.Truth()
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
	b, err := startKafka(t.Context(), os.Getenv(serversIn))
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
				if err != nil || o.wrong != "" || o.perS <= 0 || o.used.Seconds <= 0 {
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

func TestAllRunsEverythingWithItsDefaults(t *testing.T) {
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
	all := parse("all")
	consumers, claims, scale, weeks := all.All.parts()
	if want := parse("consumers").Consumers; !reflect.DeepEqual(consumers, want) {
		t.Errorf("%+v, want %+v", consumers, want)
	}
	if want := parse("claims").Claims; !reflect.DeepEqual(claims, want) {
		t.Errorf("%+v, want %+v", claims, want)
	}
	if want := parse("scale").Scale; !reflect.DeepEqual(scale, want) {
		t.Errorf("%+v, want %+v", scale, want)
	}
	if want := parse("weeks").Weeks; weeks != want {
		t.Errorf("%+v, want %+v", weeks, want)
	}
	quick := parse("all", "--quick", "--records", "1000")
	consumers, claims, scale, weeks = quick.All.parts()
	if consumers.Records != 1000 || claims.IDs != 1_000_000 || len(scale.IDs) != 2 || weeks.PerWeek != 500_000 {
		t.Errorf("quick: %d records, %d ids, %v at scale, %d claims a week", consumers.Records, claims.IDs, scale.IDs, weeks.PerWeek)
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
	log := traffic.Log{Seed: 1, N: 5000, Dup: 0.3}
	return &claiming{
		claimsCmd: &claimsCmd{IDs: log.N}, g: &cli{Dir: openDir(t), Cache: os.Getenv(serversIn), Install: true}, log: log, at: time.Now(),
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
				o, err := r.one(t.Context(), &c, choice{s, 100, 3}, r.IDs, 0)
				if err != nil || o.wrong != "" || len(o.samples) == 0 {
					t.Errorf("%+v, %v", o, err)
				}
			})
		}
	}
}

func TestScaleHasARowForEachNumberThatIsReached(t *testing.T) {
	for limit, want := range map[float64]string{
		0:    "bbolt 1000 ids: 1000, bbolt 5000 ids: 5000, hapax 1000 ids: 1000, hapax 5000 ids: 5000, ",
		1e-9: "bbolt 1000 ids: 0, hapax 1000 ids: 0, ", // the time is over before the first batch
	} {
		r := newClaiming(t)
		r.g.Only, r.Batch, r.InFlight, r.MaxSeconds = []string{"hapax", "bbolt"}, []int{100}, []int{2}, limit
		var tb table
		if err := r.scale(t.Context(), &tb, []int{1000, 5000}); err != nil {
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

// TestKillIsSeen has its control in it: what keeps claims in memory alone has lost them.
func TestKillIsSeen(t *testing.T) {
	r := newClaiming(t)
	for _, c := range claimer.Contenders {
		if c.Blind {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			k := killProcess
			if c.Server != nil {
				needServer(t)
				k = killBoth
			}
			how, err := r.kill(t.Context(), &c, choice{batch: 100}, k)
			if err != nil {
				t.Fatal(err)
			}
			if loses := c.Durability == "nothing"; loses != strings.HasPrefix(how, "WRONG") {
				t.Errorf("durability %q: %s", c.Durability, how)
			}
		})
	}
}

func TestServerThatCannotBeHadIsLeftOut(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := servers.Redis(context.Background(), servers.Options{Cache: t.TempDir(), Dir: t.TempDir()}, servers.RedisNone)
	if err == nil {
		t.Skip("this machine has a redis-server outside of PATH")
	}
	if !strings.Contains(err.Error(), "install the Debian package redis-server") {
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

func TestWeeksRiseAndFall(t *testing.T) {
	a, err := startWeeks(t.Context(), claimer.WeeksOrder{PerWeek: 2000, Weeks: 4, Keep: 1, Seed: 1, Dir: t.TempDir() + "/weeks"})
	if err != nil {
		t.Fatal(err)
	}
	var stored []uint64
	for _, s := range a.Result.Samples {
		stored = append(stored, s.Stored)
	}
	// A sample after each week's claims, and after each of the two drops.
	want := []uint64{2000, 4000, 2000, 4000, 2000, 4000}
	if len(stored) != len(want) {
		t.Fatal(stored)
	}
	for i := range want {
		if stored[i] != want[i] {
			t.Fatal(stored)
		}
	}
}

func TestRatioIsTheMedianOfTheRounds(t *testing.T) {
	a := &measured{outcomes: []outcome{{perS: 10}, {perS: 30}, {perS: 20}}}
	b := &measured{outcomes: []outcome{{perS: 10}, {perS: 10}, {perS: 10}}}
	if got := ratio(a, b); got != 2 {
		t.Error(got)
	}
}

func TestDiskWritten(t *testing.T) {
	dir := t.TempDir()
	before, err := servers.DiskWritten(dir)
	if err != nil {
		t.Fatal(err)
	}
	if before == 0 {
		t.Skip("the temporary directory is not on a disk")
	}
	const size = 8 << 20
	if err := os.WriteFile(filepath.Join(dir, "file"), bytes.Repeat([]byte("bytes "), size/6), 0o600); err != nil {
		t.Fatal(err)
	}
	after, err := servers.DiskWritten(dir)
	if err != nil || after-before < size-6 {
		t.Errorf("%d bytes were written, %v, want %d or more", after-before, err, size)
	}
}
