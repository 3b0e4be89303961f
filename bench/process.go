package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Work that is to be killed runs in a child: this program, started again. The parent writes one
// line of JSON to it, the worker that it runs, and keeps the pipe open; a child whose parent is
// gone exits. The child writes lines to its standard output, each in one call and only when it is
// true, so that the parent has read no more than the truth when the child is dead. A child that
// fails writes "fail" and why, and one that ends "done".

// A worker is the work of a child. Its exported fields are JSON.
type worker interface{ work(say *voice) error }

// childArg is the hidden command; the type of the worker follows.
const childArg = "child"

// runWorker runs the worker of that type.
func runWorker(workers []worker, kind string, order []byte, say *voice) error {
	for _, w := range workers {
		if kind == fmt.Sprintf("%T", w) {
			if err := json.Unmarshal(order, w); err != nil {
				return fmt.Errorf("reading a child's order: %w", err)
			}
			return w.work(say)
		}
	}
	return fmt.Errorf("there is no child %q", kind)
}

// tune sets the Go runtime as docs/failures.md advises for a busy consumer, unless the environment
// says something else. All children do it, whatever they measure.
func tune() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// A voice is how a child tells its parent what happened.
type voice struct {
	mu  sync.Mutex // held while a line is written
	w   io.Writer
	buf []byte
}

// line tells one line; it is with the operating system on return, and survives the death of the
// process.
func (v *voice) line(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.buf = append(fmt.Appendf(v.buf[:0], format, args...), '\n')
	if _, err := v.w.Write(v.buf); err != nil {
		os.Exit(1) // the parent is gone
	}
}

// value tells a word and a value as JSON.
func (v *voice) value(word string, value any) error {
	b, err := json.Marshal(value)
	if err == nil {
		v.line("%s %s", word, b)
	}
	return err
}

// A child is the parent's side. One goroutine uses it; kill may be called from any.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	out    *bufio.Scanner
	stderr bytes.Buffer
	stop   func() bool // lets go of the context

	mu     sync.Mutex // guards killed
	killed bool
}

// startChild starts a child that runs w. It is killed when ctx is done.
func startChild(ctx context.Context, w worker) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	line, err := json.Marshal(w)
	if err != nil {
		return nil, fmt.Errorf("writing a child's order: %w", err)
	}
	c := &child{cmd: exec.Command(self, childArg, fmt.Sprintf("%T", w))}
	c.cmd.Stderr = &c.stderr
	c.cmd.WaitDelay = 10 * time.Second
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("starting a child: %w", err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting a child: %w", err)
	}
	c.out = bufio.NewScanner(stdout)
	c.out.Buffer(nil, 1<<20)
	c.out.Split(wholeLines)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a child: %w", err)
	}
	c.stop = context.AfterFunc(ctx, c.kill)
	_, _ = c.stdin.Write(append(line, '\n')) // a child that is gone already is noticed when it is heard
	return c, nil
}

// wholeLines is bufio.ScanLines without what follows the last line end: a dead child did not finish
// saying it.
func wholeLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF {
		return len(data), nil, nil
	}
	return 0, nil, nil
}

// kill ends the child as kill -9 does.
func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.killed {
		c.killed = true
		_ = c.cmd.Process.Kill() // it may be dead already
	}
}

// hear calls heard for each line that the child says, until the child is dead, and reports whether
// it was killed rather than done. An error of heard kills the child.
func (c *child) hear(heard func(word, rest string) error) (killed bool, err error) {
	done := false
	var fails []error
	for c.out.Scan() {
		word, rest, _ := strings.Cut(c.out.Text(), " ")
		switch {
		case word == "done":
			done = true
		case word == "fail":
			fails = append(fails, errors.New(rest))
		case err == nil:
			if err = heard(word, rest); err != nil {
				c.kill()
			}
		}
	}
	if len(fails) > 0 {
		err = several(err, fmt.Errorf("its process failed: %w", several(fails...)))
	}
	c.stop()
	_ = c.stdin.Close()
	werr := c.cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if werr == nil {
		werr = errors.New("without a word")
	}
	if err == nil && !c.killed && !done {
		err = fmt.Errorf("its process ended by itself: %w: %.2000s", werr, c.stderr.String())
	}
	return !done, err
}
