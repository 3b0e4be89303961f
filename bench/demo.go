package bench

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

//go:embed data/openstack_changes.csv.gz
var demoLog []byte

// DemoOptions configure Demo.
type DemoOptions struct {
	Store StoreName
	Kills int    // 0 = DefaultDemoKills
	Dir   string // of the store, which must be new; "" = a temporary one, which is removed
	// Tell, if not nil, is told what happens, in a sentence each.
	Tell func(sentence string)
}

// DefaultDemoKills is the number of kills of the demonstration.
const DefaultDemoKills = 6

// A DemoReport is what became of a real log whose consumer was killed on the way, with the engine and with a map in
// the consumer's memory.
type DemoReport struct {
	DemoTable
	Kills   int     `json:"kills"`
	Seconds float64 `json:"seconds"`
	// Memory is the same with a map, killed at the same records.
	Memory DemoTable `json:"in_memory_map"`
	Outcome
}

// A DemoTable tells records from events. Sent = Claimed + Duplicate.
type DemoTable struct {
	// Sent counts the records that the consumer got, those included that came again after a kill.
	Sent uint64 `json:"sent"`
	// Distinct is the number of events in the log.
	Distinct uint64 `json:"distinct"`
	// Claimed and Duplicate count the verdicts: as the consumer told, but claims of the engine as they were committed,
	// because a consumer may be killed between the commit and the telling.
	Claimed   uint64 `json:"claimed"`
	Duplicate uint64 `json:"duplicate"`
	// Lost events of the log were sent and never handled, which is known when the consumer came to the end of the log;
	// those claimed twice were handled more than once.
	Lost         uint64 `json:"lost"`
	ClaimedTwice uint64 `json:"claimed_twice"`
}

// Demo has a bundled log judged by a consumer that is killed several times on the way, and looks at every event
// afterwards: handled once, lost, or handled twice. Then it does the same with a map in the consumer's memory.
func Demo(ctx context.Context, o DemoOptions) (report DemoReport, err error) {
	defer func() { report.end(err) }()
	if o.Kills == 0 {
		o.Kills = DefaultDemoKills
	}
	if o.Kills < 1 || o.Kills > maxDemoKills {
		return report, fmt.Errorf("%w: %d kills: give 1 to %d", ErrUsage, o.Kills, maxDemoKills)
	}
	if o.Tell == nil {
		o.Tell = func(string) {}
	}
	start := time.Now()
	defer func() { report.Seconds = time.Since(start).Seconds() }()
	events, err := readDemoLog()
	if err != nil {
		return report, err
	}
	place, err := newPlace(o.Dir)
	if err != nil {
		return report, err
	}
	defer place.remove(&err)
	run := demonstration{DemoOptions: o, ctx: ctx, dir: place.Dir, events: events, at: killPoints(len(events), o.Kills)}
	if err := run.withEngine(&report); err != nil {
		return report, err
	}
	if err := run.withMap(&report); err != nil {
		return report, err
	}
	if report.Lost+report.ClaimedTwice > 0 {
		return report, fmt.Errorf("%w: %d lost, %d claimed twice: run again with --dir to keep the store, and report it",
			ErrNotHeld, report.Lost, report.ClaimedTwice)
	}
	return report, nil
}

const maxDemoKills = 100

// readDemoLog reads the bundled log. An event's offset is its position.
func readDemoLog() ([]engine.Event, error) {
	log, err := newLogReader(bytes.NewReader(demoLog))
	if err != nil {
		return nil, fmt.Errorf("reading the bundled log: %w", err)
	}
	var events []engine.Event
	for {
		ev, err := log.next()
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the bundled log: %w", err)
		}
		events = append(events, engine.Event{
			Scope: "demo", ID: bytes.Clone(ev.ID), Time: ev.Time,
			Origin: engine.Origin{Topic: demoTopic, Offset: int64(len(events))},
		})
	}
}

// killPoints draws a position from each of n equal parts of the log.
func killPoints(records, n int) []uint64 {
	at := make([]uint64, n)
	for i := range at {
		part := records / (n + 1)
		at[i] = uint64((i+1)*part - rand.IntN(part/2))
	}
	return at
}

type demonstration struct {
	DemoOptions
	ctx    context.Context
	dir    string
	events []engine.Event
	at     []uint64 // positions after which the consumer is killed
}

// withEngine lets the consumer claim, count and commit its offset in transactions of the engine.
func (d *demonstration) withEngine(report *DemoReport) error {
	d.Tell(fmt.Sprintf("The consumer claims %d records with the engine (%s), and is killed on the way.", len(d.events), d.Store))
	books, err := d.consume(demoOrder{Store: d.Store, Dir: d.dir}, &report.Kills)
	report.DemoTable = books.table(d.events, err == nil)
	if err != nil {
		return err
	}
	// What counts is what the store holds in the end, not what was told on the way.
	report.Claimed, report.Lost, report.ClaimedTwice, err = d.inspect()
	report.Sent = report.Claimed + report.Duplicate
	return err
}

// withMap does the same with a map that dies with the consumer; its offset survives, as a broker's would.
func (d *demonstration) withMap(report *DemoReport) error {
	d.Tell("The same with a map in the consumer's memory.")
	var kills int
	books, err := d.consume(demoOrder{Map: true}, &kills)
	report.Memory = books.table(d.events, err == nil)
	return err
}

// consume runs consumers until the log is done; each is killed behind the next position.
func (d *demonstration) consume(order demoOrder, kills *int) (*demoBooks, error) {
	slack := uint64(demoSlack)
	if order.Map {
		slack = 0
	}
	b := &demoBooks{}
	for {
		order.From, order.Wait = b.next, uint64(len(d.events))
		if *kills < len(d.at) {
			order.Wait = d.at[*kills] + slack
		}
		c, err := startChild(d.ctx, "demo", order)
		if err != nil {
			return b, err
		}
		killed, err := c.hear(func(word, rest string) error {
			if err := b.take(word, rest); err != nil {
				return err
			}
			if *kills < len(d.at) && b.next >= d.at[*kills] {
				c.kill()
			}
			return nil
		})
		switch {
		case d.ctx.Err() != nil:
			return b, d.ctx.Err()
		case err != nil:
			return b, err
		case !killed:
			return b, nil
		}
		*kills++
		d.Tell(fmt.Sprintf("  killed (SIGKILL) after record %d; started again", b.next))
	}
}

// demoSlack is how many records a consumer may be ahead of its killer before it waits for it.
const demoSlack = 20 * demoChunk

// demoBooks are what consumers have told: "told n cdc..." for the records from n on.
type demoBooks struct {
	next uint64   // the first record without a verdict
	told []byte   // verdicts in the order in which they were told
	of   []uint64 // the records that they belong to
}

func (b *demoBooks) take(word, rest string) error {
	first, letters, ok := strings.Cut(rest, " ")
	from, err := strconv.ParseUint(first, 10, 64)
	if word != "told" || !ok || err != nil {
		return fmt.Errorf("the consumer said %q %q", word, rest)
	}
	for i := range len(letters) {
		b.told = append(b.told, letters[i])
		b.of = append(b.of, from+uint64(i))
	}
	b.next = max(b.next, from+uint64(len(letters)))
	return nil
}

// table counts what was told. Only of a log that was read to its end can it be said what was lost.
func (b *demoBooks) table(events []engine.Event, ended bool) DemoTable {
	claims := make(map[string]int)
	for i := range events {
		claims[demoKey(&events[i])] = 0
	}
	t := DemoTable{Sent: uint64(len(b.told)), Distinct: uint64(len(claims))}
	for i, verdict := range b.told {
		if verdict == 'd' {
			t.Duplicate++
			continue
		}
		t.Claimed++
		claims[demoKey(&events[b.of[i]])]++
	}
	for _, n := range claims {
		switch {
		case n == 0 && ended:
			t.Lost++
		case n > 1:
			t.ClaimedTwice++
		}
	}
	return t
}

// inspect looks every event up in the store: the claim, and how often its work was done.
func (d *demonstration) inspect() (claimed, lost, twice uint64, err error) {
	e, err := openEngine(d.Store, d.dir, false, engine.Options{RetentionWeeks: engine.KeepAll})
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	seen := make(map[string]bool)
	for i := range d.events {
		ev := &d.events[i]
		if seen[demoKey(ev)] {
			continue
		}
		seen[demoKey(ev)] = true
		_, found, err := e.Lookup(d.ctx, ev.Scope, ev.ID, ev.Time)
		if err != nil {
			return claimed, lost, twice, err
		}
		count, err := demoCount(d.ctx, e, ev)
		if err != nil {
			return claimed, lost, twice, err
		}
		claimed += count
		if !found || count == 0 {
			lost++
		}
		if count > 1 {
			twice++
		}
	}
	return claimed, lost, twice, nil
}
