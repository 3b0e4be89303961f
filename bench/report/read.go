package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrNoReport is returned if the input contains no JSON of a command.
var ErrNoReport = errors.New("no report: give the output of a command that was run with --json")

// A Run is the report of one command.
type Run struct {
	About About
	// Comparison is the report of bench/peers; nil for another command.
	Comparison *Comparison

	values map[string]json.RawMessage
}

// maxLine is the length of the longest report.
const maxLine = 64 << 20

// Read reads the reports in a file, one JSON object in each line. It skips other lines, which
// commands may have printed before.
func Read(r io.Reader) (runs []Run, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] != '{' {
			continue
		}
		run, err := parse(line)
		if err != nil {
			return runs, fmt.Errorf("line %d: %w: %w", n, ErrNoReport, err)
		}
		runs = append(runs, run)
	}
	if err := lines.Err(); err != nil {
		return runs, err
	}
	if len(runs) == 0 {
		return nil, ErrNoReport
	}
	return runs, nil
}

func parse(line []byte) (run Run, err error) {
	if err := json.Unmarshal(line, &run.values); err != nil {
		return run, err
	}
	about, ok := run.values["about"]
	if !ok {
		return run, errors.New("it has no \"about\"")
	}
	if err := json.Unmarshal(about, &run.About); err != nil {
		return run, fmt.Errorf("about: %w", err)
	}
	if _, ok := run.values["rows"]; ok {
		run.Comparison = new(Comparison)
		err = json.Unmarshal(line, run.Comparison)
	}
	return run, err
}

// number returns a value of the report; false if it is absent, null or no number.
func (r *Run) number(name string) (v float64, ok bool) {
	raw, found := r.values[name]
	if !found || string(raw) == "null" {
		return 0, false
	}
	return v, json.Unmarshal(raw, &v) == nil
}

// flag returns the value of a flag of the command, or the default.
func (r *Run) flag(name, otherwise string) string {
	fields := strings.Fields(r.About.Command) // only arguments with spaces are quoted, and the flags of interest have none
	for i, f := range fields {
		if f == "--"+name && i+1 < len(fields) {
			return fields[i+1]
		}
		if v, ok := strings.CutPrefix(f, "--"+name+"="); ok {
			return v
		}
	}
	return otherwise
}
