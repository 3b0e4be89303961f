// Package runner runs work in separate processes, kills them as planned, and starts them again.
//
// A process is this program, started again. The parent writes its work to it, as one line of JSON,
// and keeps the pipe open; a process whose parent has ended exits. The process writes lines to its
// standard output, each in one call and only when it is true, so that the parent has read only true
// lines when the process is dead. A process that fails reports "fail" with the reason, and one that
// ends reports "done". A program that starts such processes calls Main first.
package runner

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
)

// Work is done by a process. Its exported fields are JSON.
type Work interface{ Do(say *Voice) error }

// childArg is the hidden command; the next argument is the type of the work.
const childArg = "child"

// Main does the work that the arguments request; ran is false if they request none.
func Main(args []string, kinds ...Work) (code int, ran bool) {
	if len(args) != 2 || args[0] != childArg {
		return 0, false
	}
	if work(kinds, args[1]) != nil {
		return 1, true
	}
	return 0, true
}

// work does the work of the given type, as described by the first line of standard input.
func work(kinds []Work, kind string) error {
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
	say := &Voice{w: os.Stdout}
	err = fmt.Errorf("there is no work %q", kind)
	for _, w := range kinds {
		if kind == fmt.Sprintf("%T", w) {
			if err = json.Unmarshal(order, w); err == nil {
				err = WithHint(w.Do(say))
			}
		}
	}
	if err != nil {
		say.Fail(err)
		return err
	}
	say.Line("done", nil)
	return nil
}

// tune sets the Go runtime as docs/tuning.md recommends for a busy consumer, unless the environment
// has other settings. All processes use it.
func tune() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
}

// A Voice reports to the parent of a process.
type Voice struct {
	mu sync.Mutex // held while a line is written
	w  io.Writer
}

// Line writes a word and a JSON value. On return the operating system has the line, so that it
// survives the death of the process.
func (v *Voice) Line(word string, value any) {
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

// Fail reports why the process fails.
func (v *Voice) Fail(err error) { v.Line("fail", strings.Join(strings.Fields(err.Error()), " ")) }

// WithHint adds a remedy to an error without one.
func WithHint(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: free space in that directory and run again, or give another one with --dir", err)
	}
	return err
}
