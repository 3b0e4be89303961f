package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/hapax-dev/hapax/bench/internal/topics"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/bench/peers/consumer"
	"github.com/hapax-dev/hapax/bench/peers/servers"
	"github.com/hapax-dev/hapax/bench/report"
)

type consumersFlags struct {
	Brokers []string      `help:"Kafka brokers of the consumers, host:port. Without it: one of its own." placeholder:"HOST:PORT,..."`
	Records int           `help:"Records of the consumers' topic, repeats included." default:"500000"`
	Kill    bool          `help:"Kill each consumer half-way as well." default:"true" negatable:""`
	Limit   time.Duration `help:"A run of a consumer without a result after that time is ended, and counts as wrong." default:"${limit}"`
}

const (
	// runLimit is far above the time of the slowest run. After a kill of its broker, a contender
	// may wait forever, for example for the offset of a transaction that never ends.
	runLimit = 5 * time.Minute
	accounts = 50
	// repeated is the share of the records that repeat an event.
	repeated   = 0.2
	partitions = 6
	// warmRecords is how many records a program consumes before it is measured, at most.
	warmRecords = 500_000
)

var errLimit = errors.New("the limit of a run")

// works are the kinds of work that are compared.
var works = []consumer.Work{consumer.Shared, consumer.Partition, consumer.Claims}

func (c *cli) runConsumers(ctx context.Context) (err error) {
	brokers := c.Consumers.Brokers
	run := consuming{consumersFlags: c.Consumers, g: c}
	if len(brokers) == 0 {
		if run.broker, err = startKafka(ctx, c.Cache); err != nil {
			return err
		}
		defer run.broker.end(ctx)
		brokers = []string{run.broker.address}
	}
	if err := run.open(ctx, brokers); err != nil {
		return err
	}
	defer run.close(&err)
	return c.compare(ctx, "consumers", "thousand records/s", run.Records, func(t *table) ([]entry, error) { return run.entries(t), nil })
}

// consuming is a run of the command.
type consuming struct {
	consumersFlags
	g        *cli
	broker   *broker // nil: it is not our own
	brokers  *topics.Broker
	topic    *topics.Filled
	warm     *topics.Filled // nil until it is needed
	events   uint64
	balances map[int]int64
	groups   int
}

// open fills the topic.
func (r *consuming) open(ctx context.Context, brokers []string) (err error) {
	log, err := newLog(1, r.Records)
	if err != nil {
		return err
	}
	if r.brokers, err = topics.Open(ctx, brokers); err != nil {
		return err
	}
	if r.topic, err = fill(ctx, r.brokers, log, partitions); err != nil {
		r.brokers.Close()
	}
	r.events, r.balances = log.Truth()
	return err
}

func newLog(seed uint64, n int) (*traffic.Log, error) {
	src, err := traffic.NewSource(seed, traffic.UUIDv4, 1, 1)
	return &traffic.Log{Source: src, N: n, Dup: repeated, Accounts: accounts}, err
}

func (r *consuming) close(err *error) {
	r.topic.Topic.Remove(err)
	if r.warm != nil {
		r.warm.Topic.Remove(err)
	}
	r.brokers.Close()
}

// entries returns every contender with every kind of work that it can do.
func (r *consuming) entries(t *table) (all []entry) {
	for _, w := range works {
		for _, c := range consumer.Contenders {
			if !slices.Contains(c.Works, w) || !r.g.wanted(c.Name) {
				continue
			}
			e := entry{row: t.add(report.Row{Name: c.Name, Work: string(w), Durability: c.Durability, Settings: c.Settings})}
			e.run = func(ctx context.Context, k kill) (outcome, error) { return r.limited(ctx, &c, w, k) }
			if r.Kill && w == consumer.Shared {
				e.kills = []kill{killProcess}
				if c.Server != nil || c.Brokers && r.broker != nil { // the process that keeps its state can be killed with it
					e.kills = append(e.kills, killBoth)
				}
			}
			all = append(all, e)
		}
	}
	return all
}

// limited is one run of a contender. If there is no result within the limit, the outcome says so.
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
		Contender: c.Name, Work: w, Brokers: r.brokers.Seeds, Topic: r.topic.Topic.Name, Group: r.topic.Topic.Group(strconv.Itoa(r.groups)),
		Ends: r.topic.Ends, Accounts: accounts, Dir: dir,
	}
	err = r.g.onServer(ctx, c.Server, func(s *servers.Server) error {
		order.Socket = s.Socket
		if err := r.program(ctx, c, k, &order); err != nil {
			return err
		}
		if k != noKill {
			if err := r.killed(ctx, c, order, k, s); err != nil {
				return err
			}
		}
		before, err := s.CPUSeconds()
		if err != nil {
			return err
		}
		got, _, err := start[consumer.Result](ctx, &order, nil)
		if err != nil {
			return err
		}
		after, err := s.CPUSeconds()
		o.cpu = got.CPUSeconds + after - before
		o.perS = float64(r.Records) / max(got.Seconds, 1e-9)
		o.wrong = r.check(w, &got)
		return err
	})
	return o, err
}

// killed runs a contender until half of the records are done, and kills it.
func (r *consuming) killed(ctx context.Context, c *consumer.Contender, order consumer.Order, k kill, s *servers.Server) error {
	half := uint64(r.Records / 2)
	order.Hold = true
	_, killed, err := start[consumer.Result](ctx, &order, func(done uint64) bool { return done >= half })
	if err == nil && !killed {
		err = errors.New("it ended before the kill")
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

// program adds to an order what a contender with its own program needs: the program, and a topic
// for the warm-up, with other events of the same kind. A run with a kill is not measured and needs
// no warm-up.
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
	if r.warm == nil {
		log, err := newLog(2, min(r.Records, warmRecords))
		if err == nil {
			r.warm, err = fill(ctx, r.brokers, log, partitions)
		}
		if err != nil {
			return err
		}
	}
	order.WarmTopic, order.WarmRecords = r.warm.Topic.Name, int64(r.warm.Log.N)
	return nil
}

// check describes the errors in the final state of a contender, "" if there are none.
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
