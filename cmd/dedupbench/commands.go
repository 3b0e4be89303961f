package main

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"unicode"

	"github.com/alecthomas/kong"

	"github.com/hapax-dev/hapax/bench"
)

// cli is the command line. Each command is a struct of flags with a Run method.
type cli struct {
	JSON bool `help:"Print the report as one line of JSON, the last line of standard output." name:"json"`

	Replay workload[bench.ReplayOptions, bench.ReplayReport] `cmd:"" help:"Judge a log of events in its order."`
	Kill   workload[bench.KillOptions, bench.KillReport]     `cmd:"" help:"Kill a claiming process repeatedly, and count what is lost or claimed twice."`
	Reopen workload[bench.ReopenOptions, bench.ReopenReport] `cmd:"" help:"Kill a process that claims, and measure the time until its store gives verdicts again."`
	Claims workload[bench.ClaimsOptions, bench.ClaimsReport] `cmd:"" help:"Measure claims, and the bare store library for comparison."`
	Drop   workload[bench.DropOptions, bench.DropReport]     `cmd:"" help:"Drop the oldest week while claims continue, and measure how soon the space is free."`
	Kafka  workload[bench.KafkaOptions, bench.KafkaReport]   `cmd:"" help:"Consume a topic through the adapter: with kills, or measured and compared with a plain loop."`
	Layers workload[bench.LayersOptions, bench.LayersReport] `cmd:"" help:"Send requests, events and changes of rows to a process that is killed repeatedly, and count what was done twice, lost or wrong."`
	Demo   demoCmd                                           `cmd:"" help:"Consume a topic with repeats while the consumer is killed, and compare it with consumers without Hapax."`
	Report reportCmd                                         `cmd:"" help:"Draw the JSON of commands: a page of HTML, or single pictures."`
}

// A workload is a function of package bench that returns a report. The fields of its options are
// the flags.
type workload[O, R any] struct {
	Options O `embed:""`

	run  func(context.Context, O) (R, error)
	help string
}

// Help implements kong.HelpProvider.
func (c *workload[O, R]) Help() string { return c.help }

// Run runs the workload and prints its report.
func (c *workload[O, R]) Run(ctx context.Context, out *output) error {
	r, err := c.run(ctx, c.Options)
	return report(out, r, err)
}

// newCLI returns the commands.
func newCLI() *cli {
	c := &cli{}
	c.Replay.run = bench.Replay
	c.Kill.run, c.Kill.help = bench.Kill,
		"A process claims events and reports each verdict; it is killed (SIGKILL) at random points, also while it opens the store, and started "+
			"again on the same directory, where it sends again what was not acknowledged, and more. The parent records every "+
			"answer: an acknowledged claim that is missing counts as lost, and an event that was claimed twice as claimed twice."
	c.Reopen.run, c.Reopen.help = bench.Reopen,
		"A process claims until --n claims are acknowledged, and is killed (SIGKILL). Its store is opened again: how long until "+
			"the first verdict, and where the filters came from. Then every acknowledged claim is looked up."
	c.Claims.run, c.Claims.help = bench.Claims,
		"Rates count all events over the time in which the engine, or the bare store, had them. Ids, and the baseline's keys and values, "+
			"are made in portions while the clock is stopped, from their numbers alone: memory does not grow with them. Engine and baseline run "+
			"one after the other, and who goes first alternates with the rounds. Processor time is that of the whole process until the store is "+
			"idle, less that of making ids."
	c.Drop.run, c.Drop.help = bench.Drop,
		"The store is filled, closed and opened again, and left until it writes nothing any more. Then its oldest week is dropped while two "+
			"goroutines claim new events one by one. What comes back is measured by the sizes of the files that hold claims."
	c.Kafka.run, c.Kafka.help = bench.Kafka,
		"A topic of its own is filled and consumed by a process through the adapter. With --kills the process is killed (SIGKILL) at random "+
			"points of its way and started again; then every event is looked at: lost, or handled twice. Without, a plain loop that "+
			"polls the same topic and the engine alone on the same events are measured for comparison. The consumer has metrics, and a tracer that records nothing."
	c.Layers.run, c.Layers.help = bench.Layers,
		"Clients send HTTP requests with idempotency keys to a process, and some of them again. A quarter of the events that it consumes are repeats, "+
			"claimed for 24 hours, and so are changes of rows, of which the newest version wins. For each request and event the process sends a message "+
			"through its outbox, to a consumer that handles each once. The process is killed (SIGKILL) at random points and started again on its store. "+
			"Then every request, event, row and message is compared with the answers to the clients, the sent data, and the messages that the consumer has handled."
	return c
}

// help has the texts of the flags that several commands share.
var help = kong.Vars{
	"dir":     "New directory of the store; kept. Without it: a temporary one.",
	"brokers": "Kafka brokers, host:port. Without it: one inside this process.",
}

var errEmpty = errors.New("empty: give a name, or leave the flag out")

// brokers decodes a list of addresses that must not be empty, because a run without addresses would
// start an embedded broker.
func brokers(ctx *kong.DecodeContext, target reflect.Value) error {
	var list string
	if err := ctx.Scan.PopValueInto("string", &list); err != nil {
		return err
	}
	all := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	if len(all) == 0 {
		return errEmpty
	}
	target.Set(reflect.ValueOf(all))
	return nil
}

// nonEmpty decodes a flag that must not be empty or blank: such a value usually comes from a
// script's variable that was not set.
func nonEmpty(expand func(string) string) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		var value string
		err := ctx.Scan.PopValueInto("string", &value)
		if err == nil && strings.TrimSpace(value) == "" {
			err = errEmpty
		}
		if err == nil {
			target.SetString(expand(value))
		}
		return err
	}
}
