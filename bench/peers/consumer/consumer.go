// Package consumer consumes one topic in several ways: with a map, a database, a cache, handwritten
// code over Pebble, and Hapax. Each deduplicates by the id in the records' headers, decodes the
// JSON of new events, and moves their amounts between accounts.
package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/bench/peers/servers"
)

// Work is the kind of work for each new event.
type Work string

// The kinds of work. All decode the JSON of each new event.
const (
	Shared    Work = "shared"    // moves money between accounts that all partitions share
	Partition Work = "partition" // the same, with accounts for each partition alone
	Claims    Work = "claims"    // only decodes
)

// An Order has all parameters of a process that consumes.
type Order struct {
	Contender string
	Work      Work
	Brokers   []string
	Topic     string
	Group     string
	Ends      []int64 // the offset after the last record of each partition
	Accounts  int
	Socket    string // of its server
	Program   string // the program that it runs, as returned by Contender.Build
	Broker    int    // the id of the broker's process, 0 if it is not known
	// WarmTopic is a topic of the same kind with which a program warms up before the clock starts,
	// "" if there is none. WarmRecords is the number of its records.
	WarmTopic   string
	WarmRecords int64
	Dir         string // of its store
	Hold        bool   // it stays where it is at the end of the topic, to be killed
}

// A Result is the state of a consumer at the end of the topic.
type Result struct {
	// Seconds are from the first fetched record until the last one's work is as durable as the
	// contender makes it.
	Seconds float64
	// Claims is the number of claimed events, and Balances the balance of each account, summed over
	// the partitions.
	Claims   uint64
	Balances map[int]int64
	// CPUSeconds is the processor time of the process; with a warm-up, that of process and broker
	// since then.
	CPUSeconds float64
}

// Batch is how many records of one partition are in a batch, if the contender handles batches.
const Batch = 2000

// Do implements runner.Work: it consumes the topic to its end. It reports "at" with the number of
// records that are done, and "result".
func (o *Order) Do(say *runner.Voice) error {
	r, err := o.consume(context.Background(), func(done uint64) { say.Line("at", done) })
	if err == nil && o.WarmTopic == "" {
		r.CPUSeconds, err = servers.CPUSeconds(os.Getpid())
	}
	if err == nil {
		say.Line("result", r)
	}
	return err
}

func (o *Order) consume(ctx context.Context, progress func(done uint64)) (Result, error) {
	c, ok := find(o.Contender)
	if !ok {
		return Result{}, fmt.Errorf("there is no contender %q", o.Contender)
	}
	if c.run != nil {
		return c.run(ctx, *o, progress)
	}
	s, err := c.open(ctx, o)
	if err != nil {
		return Result{}, err
	}
	r, err := consume(ctx, o, s, progress)
	return r, errors.Join(err, s.close())
}

// A sink is a contender that gets batches.
type sink interface {
	// apply handles records of one partition, in order. On its return their work is as durable as
	// the contender makes it. It is called for several partitions concurrently, unless the sink is
	// a loop.
	apply(ctx context.Context, partition int32, recs []*kgo.Record) error
	// offsets returns the next offset of each partition; nil if Kafka has the offsets.
	offsets(ctx context.Context) ([]int64, error)
	// state reads the claims and balances.
	state(ctx context.Context) (Result, error)
	close() error
}

// idOf parses the id in a record's headers.
func idOf(r *kgo.Record) (uuid.UUID, error) {
	id, err := uuid.ParseBytes(traffic.IDOf(r))
	if err != nil {
		return id, fmt.Errorf("the record at offset %d of partition %d has no id: %w", r.Offset, r.Partition, err)
	}
	return id, nil
}

func decodePayment(value []byte) (p traffic.Payment, err error) {
	err = json.Unmarshal(value, &p)
	return p, err
}

// A payments decodes the new events of a batch and sums what they move.
type payments struct {
	work  Work
	moved map[int]int64
}

func newPayments(w Work) *payments { return &payments{work: w, moved: make(map[int]int64)} }

func (p *payments) add(r *kgo.Record) error {
	pay, err := decodePayment(r.Value)
	if err != nil {
		return err
	}
	if p.work != Claims {
		p.moved[pay.From] -= pay.Amount
		p.moved[pay.To] += pay.Amount
	}
	return nil
}

// account returns the number under which an account is kept. Accounts of one partition only have
// separate numbers.
func (o *Order) account(partition int32, n int) int {
	if o.Work == Partition {
		return int(partition)*o.Accounts + n
	}
	return n
}

// all returns the number of accounts.
func (o *Order) all() int {
	switch o.Work {
	case Shared:
		return o.Accounts
	case Partition:
		return len(o.Ends) * o.Accounts
	}
	return 0
}

// fold sums the balances of kept accounts over the partitions.
func (o *Order) fold(kept map[int]int64) map[int]int64 {
	sums := make(map[int]int64)
	for n, balance := range kept {
		sums[n%o.Accounts] += balance
	}
	return sums
}
