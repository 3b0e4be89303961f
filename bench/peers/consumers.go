package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/hapax-dev/hapax/bench/peers/consumer"
	"github.com/hapax-dev/hapax/bench/peers/servers"
	"github.com/hapax-dev/hapax/bench/peers/traffic"
	"github.com/hapax-dev/hapax/bench/report"
)

type consumersCmd struct {
	Brokers    []string `help:"Kafka brokers, host:port. Without it: one of its own." placeholder:"HOST:PORT,..."`
	Records    int      `help:"Records of the topic, repeats included." default:"500000"`
	Dup        float64  `help:"Share of them that repeat an event." default:"0.2"`
	Partitions int      `help:"Partitions of the topic." default:"6"`
	Works      []string `help:"Kinds of work: shared, partition, claims." default:"shared,partition,claims"`
	Kill       bool     `help:"Kill each contender half-way as well." default:"true" negatable:""`

	Limit time.Duration `help:"A run without a result after that time is ended, and counts as wrong." default:"${limit}"`
}

// runLimit is far above the time of the slowest run. A contender may wait forever for what a kill
// of its broker has left, such as an offset of a transaction that never ends.
const runLimit = 5 * time.Minute

var errLimit = errors.New("the limit of a run")

// Run implements the command.
func (c *consumersCmd) Run(ctx context.Context, g *cli) (err error) {
	brokers := c.Brokers
	run := consuming{consumersCmd: c, g: g}
	if len(brokers) == 0 {
		if run.broker, err = startKafka(ctx, g.Cache); err != nil {
			return err
		}
		defer run.broker.end(ctx)
		brokers = []string{run.broker.address}
	}
	log := traffic.Log{Seed: g.Seed, N: c.Records, Dup: c.Dup, Accounts: traffic.DefaultAccounts}
	say("filling a topic with %d records", c.Records)
	if run.topic, err = newTopic(ctx, brokers, &log, c.Partitions); err != nil {
		return err
	}
	defer run.removeTopics()
	run.events, run.balances = log.Truth()
	start := time.Now()
	r := report.Comparison{Records: c.Records, Rounds: g.Rounds, About: report.NewAbout("peers consumers", script, os.Args[1:])}
	tb := table{kept: &r}
	err = run.all(ctx, &tb)
	tb.finish()
	r.Seconds = time.Since(start).Seconds()
	if err != nil {
		r.Error = err.Error()
	}
	tb.print("thousand records/s")
	return errors.Join(err, g.keep("consumers", &r))
}

// consuming is a run of the command.
type consuming struct {
	*consumersCmd
	g        *cli
	broker   *broker // nil: it is not our own
	topic    *topic
	warm     *topic // nil as long as nobody needs it
	events   uint64
	balances map[int]int64
	groups   int
}

// all runs every contender with every kind of work in each round, and then the kills.
func (r *consuming) all(ctx context.Context, tb *table) error {
	type entry struct {
		consumer.Contender
		work consumer.Work
		row  *measured
	}
	var entries []entry
	for _, w := range r.Works {
		for _, c := range consumer.Contenders {
			for _, can := range c.Works {
				if can == consumer.Work(w) && r.g.wanted(c.Name) {
					entries = append(entries, entry{c, can, tb.add(report.Row{Name: c.Name, Work: w, Durability: c.Durability, Settings: c.Settings})})
				}
			}
		}
	}
	for round := range r.g.Rounds {
		for i := range entries {
			e := &entries[(i+round*len(entries)/r.g.Rounds)%len(entries)]
			if e.row.absent {
				continue
			}
			o, err := r.limited(ctx, &e.Contender, e.work, noKill)
			if errors.Is(err, servers.ErrAbsent) {
				say("left out: %v", err)
				e.row.absent = true
				continue
			}
			if err != nil {
				return fmt.Errorf("%s, %s: %w", e.Name, e.work, err)
			}
			e.row.take(o)
			say("round %d of %d: %-20s %-10s %8.1f k/s  cpu %5.1f s  %s", round+1, r.g.Rounds, e.Name, e.work, o.perS/1e3, o.used.Seconds, o.wrongOrRight())
		}
	}
	for i := range entries {
		e := &entries[i]
		if !r.Kill || e.row.absent || e.work != consumer.Shared {
			continue
		}
		for _, k := range []kill{killProcess, killBoth} {
			if k == killBoth && !r.canKillServer(&e.Contender) {
				continue
			}
			o, err := r.limited(ctx, &e.Contender, e.work, k)
			if err != nil {
				return fmt.Errorf("%s, killed: %w", e.Name, err)
			}
			e.row.killed(k, o.wrongOrRight())
			say("%v: %-20s %s", k, e.Name, o.wrongOrRight())
		}
	}
	return nil
}

// A kill says what is killed half-way.
type kill int

const (
	noKill kill = iota
	killProcess
	killBoth // the process, and its server
)

func (k kill) String() string {
	return [...]string{"not killed", "process killed", "process and server killed"}[k]
}

// limited is one run of a contender. If it has no result within the limit, that is the outcome.
func (r *consuming) limited(ctx context.Context, c *consumer.Contender, w consumer.Work, k kill) (outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Limit, errLimit)
	defer cancel()
	o, err := r.one(ctx, c, w, k)
	if err != nil && errors.Is(context.Cause(ctx), errLimit) {
		return outcome{wrong: fmt.Sprintf("no result after %v", r.Limit)}, nil
	}
	return o, err
}

// one is one run of a contender.
func (r *consuming) one(ctx context.Context, c *consumer.Contender, w consumer.Work, k kill) (o outcome, err error) {
	dir := filepath.Join(r.g.Dir, "store")
	if err := os.RemoveAll(dir); err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r.groups++
	order := consumer.Order{
		Contender: c.Name, Work: w, Brokers: r.topic.brokers, Topic: r.topic.name, Group: fmt.Sprintf("%s-%d", r.topic.name, r.groups),
		Ends: r.topic.ends, Accounts: traffic.DefaultAccounts, Dir: dir,
	}
	server, stop, err := startServer(ctx, c.Server, r.g.options("server"))
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	order.Socket = server.Socket
	if err := r.program(ctx, c, k, &order); err != nil {
		return o, err
	}
	if c.Brokers {
		defer func() { err = errors.Join(err, r.topic.removeOthers(ctx, order.Group+"-")) }()
	}
	if k != noKill {
		if err := r.killed(ctx, c, order, k, server); err != nil {
			return o, err
		}
	}
	used, err := use(server, r.g.Dir)
	if err != nil {
		return o, err
	}
	a, _, err := start[consumer.Result](ctx, "consume", order, nil)
	if err != nil {
		return o, err
	}
	o.used, err = used(a.CPUSeconds)
	if a.Result.Used != nil {
		o.used = *a.Result.Used
	}
	o.perS = float64(r.Records) / max(a.Result.Seconds, 1e-9)
	o.wrong = r.check(w, &a.Result)
	return o, err
}

// canKillServer reports whether what keeps a contender's state can be killed with it.
func (r *consuming) canKillServer(c *consumer.Contender) bool {
	return c.Server != nil || c.Brokers && r.broker != nil
}

// killed runs a contender until half of the records are done, and kills it.
func (r *consuming) killed(ctx context.Context, c *consumer.Contender, order consumer.Order, k kill, s *servers.Server) error {
	half := uint64(r.Records / 2)
	order.Hold = true
	_, killed, err := start[consumer.Result](ctx, "consume", order, func(done uint64) bool { return done >= half })
	if err == nil && !killed {
		err = errors.New("it came to its end by itself")
	}
	switch {
	case err != nil || k != killBoth:
		return err
	case c.Brokers:
		return r.broker.restart(ctx)
	}
	s.Kill()
	return s.Start(ctx)
}

// program adds to an order what a contender with a program of its own needs. A run with a kill is
// not measured, so the program need not be warm.
func (r *consuming) program(ctx context.Context, c *consumer.Contender, k kill, order *consumer.Order) (err error) {
	if c.Build == nil {
		return nil
	}
	if order.Program, err = c.Build(ctx, r.g.options("program")); err != nil || k != noKill {
		return err
	}
	if c.Brokers && r.broker != nil {
		if order.Broker, err = r.broker.pid(); err != nil {
			return err
		}
	}
	return r.warmUp(ctx, order)
}

// warmRecords is how many records a program consumes before it is measured, at most.
const warmRecords = 500_000

// warmUp adds to an order a topic for its program to become warm with: other events of the same
// kind.
func (r *consuming) warmUp(ctx context.Context, order *consumer.Order) (err error) {
	log := traffic.Log{Seed: r.g.Seed + 1, N: min(r.Records, warmRecords), Dup: r.Dup, Accounts: traffic.DefaultAccounts}
	if r.warm == nil {
		r.warm, err = newTopic(ctx, r.topic.brokers, &log, len(r.topic.ends))
	}
	if err == nil {
		order.WarmTopic, order.WarmRecords = r.warm.name, int64(log.N)
	}
	return err
}

func (r *consuming) removeTopics() {
	r.topic.remove()
	if r.warm != nil {
		r.warm.remove()
	}
}

// startServer makes and starts a contender's server; one without a server gets one that does
// nothing.
func startServer(ctx context.Context, newServer func(context.Context, servers.Options) (*servers.Server, error), o servers.Options) (s *servers.Server, stop func() error, err error) {
	if newServer == nil {
		return &servers.Server{}, func() error { return nil }, nil
	}
	if err := os.RemoveAll(o.Dir); err != nil {
		return nil, nil, err
	}
	if s, err = newServer(ctx, o); err != nil {
		return nil, nil, err
	}
	if err := s.Start(ctx); err != nil {
		return nil, nil, errors.Join(err, s.Remove())
	}
	return s, s.Remove, nil
}

// check says what is wrong with what a contender holds in the end, "" if nothing is.
func (r *consuming) check(w consumer.Work, got *consumer.Result) string {
	if got.Claims != r.events {
		return fmt.Sprintf("%d claims for %d events", got.Claims, r.events)
	}
	if w == consumer.Claims || maps.Equal(got.Balances, r.balances) {
		return ""
	}
	wrong := 0
	for n, want := range r.balances {
		if got.Balances[n] != want {
			wrong++
		}
	}
	return fmt.Sprintf("%d of %d balances", wrong, len(r.balances))
}
