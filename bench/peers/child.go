package main

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
	"strconv"
	"strings"
	"sync"

	"github.com/hapax-dev/hapax/bench/peers/claimer"
	"github.com/hapax-dev/hapax/bench/peers/consumer"
	"github.com/hapax-dev/hapax/bench/peers/servers"
)

// Every measured run is a process of its own: this program, started again. It reads its order as
// one line of JSON and ends when its standard input does. It says "at N" for its progress and in
// the end "result" with an answer, or "fail" and why.
const childArg = "child"

// An answer is what a child says in the end. CPUSeconds is of the whole process.
type answer[R any] struct {
	Result     R
	CPUSeconds float64
}

func childMain(kind string) (code int) {
	// As docs/tuning.md advises for a busy consumer; for every contender alike.
	debug.SetGCPercent(200)
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	in := bufio.NewReader(os.Stdin)
	order, err := in.ReadBytes('\n')
	if err != nil {
		return 1
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(1) // the parent is gone
	}()
	switch kind {
	case "consume":
		err = work(order, consumer.Run)
	case "claim":
		err = work(order, claimer.Run)
	case "weeks":
		err = work(order, claimer.Weeks)
	default:
		err = fmt.Errorf("there is no child %q", kind)
	}
	if err != nil {
		fmt.Printf("fail %s\n", strings.Join(strings.Fields(err.Error()), " "))
		return 1
	}
	return 0
}

// work does what an order says.
func work[O, R any](order []byte, do func(context.Context, O, func(uint64)) (R, error)) error {
	var o O
	if err := json.Unmarshal(order, &o); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var mu sync.Mutex // held while a line is written
	r, err := do(ctx, o, func(n uint64) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = os.Stdout.WriteString("at " + strconv.FormatUint(n, 10) + "\n")
	})
	if err != nil {
		return err
	}
	cpu, err := servers.CPUSeconds(os.Getpid())
	if err != nil {
		return err
	}
	b, err := json.Marshal(answer[R]{r, cpu})
	if err == nil {
		mu.Lock()
		defer mu.Unlock()
		_, err = fmt.Printf("result %s\n", b)
	}
	return err
}

// start runs a child to its end. at is called with its progress; when it returns true, the child is
// killed with SIGKILL. nil: it is not.
func start[R any](ctx context.Context, kind string, order any, at func(n uint64) bool) (a answer[R], killed bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return a, false, err
	}
	line, err := json.Marshal(order)
	if err != nil {
		return a, false, err
	}
	cmd := exec.CommandContext(ctx, self, childArg, kind)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return a, false, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return a, false, err
	}
	if err := cmd.Start(); err != nil {
		return a, false, err
	}
	defer func() { _ = in.Close() }()
	_, _ = in.Write(append(line, '\n')) // a child that is gone is noticed below
	done := false
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "at":
			n, perr := strconv.ParseUint(rest, 10, 64)
			if perr == nil && !killed && at != nil && at(n) {
				killed = true
				_ = cmd.Process.Kill()
			}
		case "result":
			done = true
			err = json.Unmarshal([]byte(rest), &a)
		case "fail":
			err = errors.New(rest)
		}
	}
	werr := cmd.Wait()
	switch {
	case err != nil:
	case ctx.Err() != nil:
		err = ctx.Err()
	case !done && !killed:
		err = fmt.Errorf("the process ended: %w: %.2000s", werr, stderr.String())
	}
	return a, killed && !done, err
}
