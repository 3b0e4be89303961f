// Command dedupbench replays logs, measures claims, drops weeks, consumes topics and kills
// processes, and reports the results.
//
// Every command prints a table, or with --json one line of JSON as the last line of its standard
// output. Its exit status is 0 if the run was completed and its checks passed, 1 if not, and 2 if
// the command line is invalid.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/hapax-dev/hapax/bench"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	if code, ran := bench.ChildMain(os.Args[1:]); ran {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes the command line and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := newCLI()
	written := &checkedWriter{w: stdout}
	out := &output{stdout: written, stderr: stderr, args: args, json: slices.Contains(args, "--json") || slices.Contains(args, "--json=true")}
	exited := -1
	parser, err := kong.New(c, kong.Name("dedupbench"), kong.Writers(stdout, stderr),
		kong.Description("Replays logs, measures claims, drops weeks, consumes topics and kills processes, and reports the results."),
		kong.Exit(func(code int) { exited = code }),
		help, kong.NamedMapper("dir", nonEmpty(kong.ExpandPath)), kong.NamedMapper("name", nonEmpty(strings.TrimSpace)),
		kong.NamedMapper("brokers", kong.MapperFunc(brokers)),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(out))
	if err != nil {
		panic(err) // the struct above is wrong
	}
	command, err := parser.Parse(args)
	if exited >= 0 { // --help was asked for
		return exited
	}
	if err != nil {
		return out.refuse(err)
	}
	out.json = c.JSON
	out.command, _, _ = strings.Cut(command.Command(), " ")
	code := out.exit(command.Run())
	if written.err != nil {
		say(stderr, "dedupbench %s: the report could not be written: %v\n", out.command, written.err)
		return max(code, exitFailed)
	}
	return code
}

// A checkedWriter remembers the first error of its writer.
type checkedWriter struct {
	w   io.Writer
	err error
}

func (c *checkedWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	if c.err == nil {
		c.err = err
	}
	return n, err
}

// exit prints an error to stderr and returns the exit status.
func (o *output) exit(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, bench.ErrUsage):
		say(o.stderr, "dedupbench %s: %s\n", o.command, oneLine(err))
		return exitUsage
	case errors.Is(err, context.Canceled):
		soFar := ""
		if o.printed {
			soFar = ": the counts are those so far"
		}
		say(o.stderr, "dedupbench %s: interrupted%s\n", o.command, soFar)
	default:
		say(o.stderr, "dedupbench %s: %s\n", o.command, oneLine(err))
	}
	return exitFailed
}

// refuse reports an invalid command line.
func (o *output) refuse(err error) int {
	if o.json {
		o.print(struct {
			Error string `json:"error"`
		}{err.Error()})
	}
	say(o.stderr, "dedupbench: %s: see dedupbench --help\n", oneLine(err))
	return exitUsage
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
