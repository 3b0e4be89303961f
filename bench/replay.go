package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
)

// ReplayOptions configure Replay.
type ReplayOptions struct {
	Log         string `arg:"" name:"file" help:"Log with a header line and columns id and time (RFC 3339), plain or gzip'd. A row is one line."`
	Common      `set:"dir=Directory of the store; kept, and used again by the next run. Without it: a temporary one."`
	Scope       string `help:"Consumer that the claims are made for." default:"bench" type:"name"`
	KeepWeeks   int    `help:"Weeks before the current one that are kept, 0 for all. Events of older weeks are too_old." default:"4"`
	Batch       int    `help:"Events judged by one call." default:"1000"`
	SmallTables bool   `help:"Make tables so small that 50,000 claims fill at least twenty, for damage tests (pebble only)."`
}

const maxKeepWeeks = 5200 // the engine's limit of a retention

// MaxRejectedRows is the number of rejected rows that a report lists; all are counted.
const MaxRejectedRows = 100

// A ReplayReport is the outcome of the rows of a log: Records is the sum of the verdicts and of
// Rejected.
type ReplayReport struct {
	Records   uint64 `json:"records"`
	Claimed   uint64 `json:"claimed"`
	Duplicate uint64 `json:"duplicate"`
	TooOld    uint64 `json:"too_old"`
	TooNew    uint64 `json:"too_new"`
	// Rejected counts the rows that are not events. RejectedRows lists the first of them, in the
	// order of their lines.
	Rejected uint64 `json:"rejected"`
	// Weeks is the number of retained weeks with claims, of all scopes.
	Weeks int `json:"weeks"`
	// Seconds is the time from opening the store to closing it.
	Seconds      float64       `json:"seconds"`
	BlankLines   uint64        `json:"blank_lines,omitempty"`
	RejectedRows []RejectedRow `json:"rejected_rows,omitempty"`
	// RejectedRowsLeftOut is the number of further rejected rows that are not listed.
	RejectedRowsLeftOut uint64 `json:"rejected_rows_left_out,omitempty"`
	Outcome
}

// A RejectedRow is a row of a log that is no event.
type RejectedRow struct {
	Line   int    `json:"line"`
	Reason string `json:"reason"`
}

func (r RejectedRow) String() string { return fmt.Sprintf("line %d: %s", r.Line, r.Reason) }

// reject counts a row.
func (r *ReplayReport) reject(line int, reason string) {
	r.Records++
	r.Rejected++
	if len(r.RejectedRows) < MaxRejectedRows {
		r.RejectedRows = append(r.RejectedRows, RejectedRow{line, reason})
	}
	r.RejectedRowsLeftOut = r.Rejected - uint64(len(r.RejectedRows))
}

// Replay judges the events of a log, in order.
func Replay(ctx context.Context, o ReplayOptions) (report ReplayReport, err error) {
	defer report.end(&err)
	if o.Batch < 1 || o.KeepWeeks < 0 || o.KeepWeeks > maxKeepWeeks {
		return report, fmt.Errorf("%w: --batch %d, --keep-weeks %d: give a batch from 1, and 0 to %d weeks", ErrUsage, o.Batch, o.KeepWeeks, maxKeepWeeks)
	}
	log, err := openLog(o.Log)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, log.close()) }()
	defer stopwatch(&report.Seconds)()
	p := replay{ctx: ctx, log: log, report: &report, ReplayOptions: o, topic: filepath.Base(o.Log)}
	p.topic = p.topic[:min(len(p.topic), limits.TopicBytes)]
	if o.Dir == "" {
		err = inTemporary(p.in)
	} else {
		err = p.in(o.Dir)
	}
	return report, err
}

// in replays the log with the store in dir.
func (p *replay) in(dir string) error {
	if p.KeepWeeks == 0 {
		p.KeepWeeks = engine.KeepAll
	}
	e, err := openEngine(p.Store, dir, tuning{smallTables: p.SmallTables}, engine.Options{RetentionWeeks: p.KeepWeeks})
	if err != nil {
		return err
	}
	p.e = e
	err = p.run()
	weeks, werr := e.keptWeeks(p.ctx) // even if the log was not read to its end
	if p.report.Weeks = len(weeks); err == nil {
		err = werr
	}
	p.report.BlankLines = p.log.blank
	if cerr := e.Engine.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("closing the store: %w", cerr)
	}
	return err
}

// A replay is one run over a log.
type replay struct {
	ReplayOptions
	ctx    context.Context
	e      *opened
	log    *logReader
	report *ReplayReport

	topic  string
	rows   []RejectedRow  // rows read since the last call of judge; without a reason, the row is the next event
	events []engine.Event // of these rows
	ids    []byte         // arena of the events' ids
}

func (p *replay) run() error {
	for {
		ev, err := p.log.next()
		var bad *rowError
		if errors.As(err, &bad) {
			p.rows = append(p.rows, RejectedRow(*bad))
		} else if err == nil {
			p.add(ev)
		}
		ended := err != nil && bad == nil
		if ended || len(p.rows) >= p.Batch {
			if err := p.judge(); err != nil {
				return err
			}
		}
		switch {
		case ended && errors.Is(err, io.EOF):
			return nil
		case ended:
			return fmt.Errorf("reading the log after line %d: %w", p.log.line, err)
		}
	}
}

func (p *replay) add(ev row) {
	at := len(p.ids)
	p.ids = append(p.ids, ev.ID...)
	p.events = append(p.events, engine.Event{
		Scope: p.Scope, ID: p.ids[at:len(p.ids):len(p.ids)], Time: ev.Time,
		Origin: engine.Origin{Topic: p.topic, Offset: int64(ev.Line)},
	})
	p.rows = append(p.rows, RejectedRow{Line: ev.Line})
}

// judge judges the events read since the last time, and counts their rows.
func (p *replay) judge() error {
	if len(p.rows) == 0 {
		return nil
	}
	defer func() { p.rows, p.events, p.ids = p.rows[:0], p.events[:0], p.ids[:0] }()
	results, err := p.e.Engine.TryClaimBatch(p.ctx, p.events)
	if err != nil {
		return fmt.Errorf("judging lines %d to %d: %w", p.rows[0].Line, p.rows[len(p.rows)-1].Line, err)
	}
	for _, row := range p.rows {
		if row.Reason != "" {
			p.report.reject(row.Line, row.Reason)
			continue
		}
		if err := p.report.count(row.Line, &results[0]); err != nil {
			return err
		}
		results = results[1:]
	}
	return nil
}

// count adds a result to the report.
func (r *ReplayReport) count(line int, res *engine.Result) error {
	var refused *engine.EventError
	if errors.As(res.Err, &refused) {
		r.reject(line, refused.Error())
		return nil
	}
	switch {
	case res.Err != nil:
		return fmt.Errorf("judging line %d: %w", line, res.Err)
	case res.Verdict == engine.Claimed:
		r.Claimed++
	case res.Verdict == engine.Duplicate:
		r.Duplicate++
	case res.Verdict == engine.TooOld:
		r.TooOld++
	case res.Verdict == engine.TooNew:
		r.TooNew++
	default:
		return fmt.Errorf("line %d got the verdict %v", line, res.Verdict)
	}
	r.Records++
	return nil
}
