package bench

import (
	"bufio"
	"io"
	"os"
)

// workers are what a child can run.
var workers = []worker{&claimWorker{}, &consumeOrder{}, &claimsOrder{}, &layersProcess{}}

// ChildMain runs a child process if the arguments ask for one; ran is false if they do not. A
// program that runs workloads which kill a process calls it first thing in main.
func ChildMain(args []string) (code int, ran bool) {
	if len(args) != 2 || args[0] != childArg {
		return 0, false
	}
	tune()
	say := &voice{w: os.Stdout}
	in := bufio.NewReader(os.Stdin)
	order, err := in.ReadBytes('\n')
	if err != nil {
		return 1, true // the parent is gone
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(1) // the parent is gone
	}()
	if err := withHint(runWorker(workers, args[1], order, say)); err != nil {
		say.line("fail %s", oneLine(err))
		return 1, true
	}
	say.line("done")
	return 0, true
}
