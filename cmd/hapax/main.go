// Command hapax answers questions about a store that no process has open, and changes it. The command scan
// reads a Kafka topic instead.
//
// Every command prints a table, or JSON with -o. Commands that change a store only say what they would do,
// unless --yes is given. The exit status is
//
//	0 if the command did what was asked,
//	1 if it failed,
//	2 if the command line is invalid,
//	3 if the answer is not the wanted one: no claim was found, problems were found, nothing was changed,
//	4 if the answer is incomplete: a part of the store is damaged, or the time-out has passed.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/alecthomas/kong"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes the command line and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := &cli{}
	exited := -1
	parser, err := kong.New(c, kong.Name("hapax"), kong.Writers(stdout, stderr), kong.Exit(func(code int) { exited = code }),
		kong.Description("Answers questions about a store that no process has open, and changes it. "+
			"Exit status: 0 done, 1 failed, 2 invalid command line, 3 the answer is not the wanted one, 4 the answer is incomplete."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	if err != nil {
		panic(err) // the struct above is wrong
	}
	command, err := parser.Parse(args)
	if exited >= 0 { // --help was asked for
		return exited
	}
	if err != nil {
		say(stderr, "hapax: %s: see hapax --help\n", oneLine(err))
		return exitUsage
	}
	if c.Store == "" && command.Command() != "scan" {
		say(stderr, "hapax: missing flags: --store=DIR: see hapax --help\n")
		return exitUsage
	}
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	out := &output{w: stdout, format: c.Output}
	command.BindTo(ctx, (*context.Context)(nil))
	err = command.Run(out, &files{dir: filepath.Clean(c.Store), yes: c.Yes})
	if err := errors.Join(err, out.err); err != nil {
		say(stderr, "hapax: %s\n", oneLine(err))
		return exitStatus(err)
	}
	return 0
}
