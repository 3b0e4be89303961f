package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

// Work that is to be killed runs in a process of its own: this program, started again. The parent
// writes one line of JSON to it, with the worker that it runs, and keeps the pipe open; a process
// without its parent exits. It writes lines to its standard output, each in one call and only when
// it is true, so that the parent has read only true lines when the process is dead. A process that
// fails reports "fail" with the reason, and one that ends "done".

// A worker is the work of a process. Its exported fields are JSON.
type worker interface{ work(say *voice) error }

// childArg is the hidden command; the type of the worker follows.
const childArg = "child"

// runChild runs the worker of that type, with the order at the start of its standard input.
func runChild(workers []worker, kind string) error {
	tune()
	in := bufio.NewReader(os.Stdin)
	order, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(1) // the parent has ended
	}()
	say := &voice{w: os.Stdout}
	err = fmt.Errorf("there is no worker %q", kind)
	for _, w := range workers {
		if kind == fmt.Sprintf("%T", w) {
			if err = json.Unmarshal(order, w); err == nil {
				err = withHint(w.work(say))
			}
		}
	}
	if err != nil {
		say.fail(err)
		return err
	}
	say.line("done", nil)
	return nil
}

// tune sets the Go runtime as docs/tuning.md advises for a busy consumer, unless the environment
// has other settings. All workers use it.
func tune() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
}

// With a voice, a process reports to its parent.
type voice struct {
	mu sync.Mutex // held while a line is written
	w  io.Writer
}

// line writes a word and a value, as JSON; the operating system has it on return, so that it
// survives the death of the process.
func (v *voice) line(word string, value any) {
	b, err := json.Marshal(value)
	if err != nil {
		panic(err) // the values are numbers, strings and structs of them
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, err := fmt.Fprintf(v.w, "%s %s\n", word, b); err != nil {
		os.Exit(1) // the parent has ended
	}
}

func (v *voice) fail(err error) { v.line("fail", strings.Join(strings.Fields(err.Error()), " ")) }
