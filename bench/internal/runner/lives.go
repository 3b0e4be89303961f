package runner

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Lives are processes that run one after the other on the same store. Each is killed as planned.
// The process after the last kill ends by itself, or a Hearing kills it.
type Lives struct {
	Next  func(k Kill) Work // returns the work of the next process
	Kills []Kill
	Hear  map[string]Hearing // by the first word of the reported line
	// End makes the last kill the end: no process follows it.
	End bool
	// Silence is the longest time without progress, after which the run ends; 0: no limit. A
	// repeated report is no progress.
	Silence time.Duration

	Killed int // processes so far
	kill   func()
}

// MaxSilence is the Silence of a process that reports its progress.
const MaxSilence = 2 * time.Minute

// A Hearing gets the JSON value of a line.
type Hearing func(value []byte) error

// Hears returns a Hearing that decodes the value of a line for do.
func Hears[T any](do func(T) error) Hearing {
	return func(value []byte) error {
		var v T
		if err := json.Unmarshal(value, &v); err != nil {
			return err
		}
		return do(v)
	}
}

// Kill kills the process that runs.
func (l *Lives) Kill() { l.kill() }

// Run runs the processes.
func (l *Lives) Run(ctx context.Context) error {
	for {
		k := Never
		if l.Killed < len(l.Kills) {
			k = l.Kills[l.Killed]
		}
		killed, err := l.life(ctx, k)
		switch {
		case err != nil || k == Never:
			return err
		case !killed:
			return fmt.Errorf("the process ended before its kill %d", l.Killed+1)
		}
		if l.Killed++; l.End && l.Killed == len(l.Kills) {
			return nil
		}
	}
}

var errKilled = errors.New("killed")

// life is one process, from its start to its end. It is killed when ctx is done.
func (l *Lives) life(ctx context.Context, k Kill) (killed bool, err error) {
	alive, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	l.kill = func() { stop(errKilled) }
	out, end, err := start(alive, l.Next(k))
	if err != nil {
		return false, err
	}
	silence := time.AfterFunc(l.longest(), func() { stop(fmt.Errorf("its process has made no progress for %v", l.Silence)) })
	defer silence.Stop()
	if k.Early > 0 {
		defer time.AfterFunc(k.Early, l.kill).Stop()
	}
	done, said := false, make(map[string]string)
	for out.Scan() {
		word, value, _ := strings.Cut(out.Text(), " ")
		done = done || word == "done"
		if said[word] != value {
			said[word] = value
			silence.Reset(l.longest())
		}
		if herr := l.heard(k, word, []byte(value)); herr != nil {
			stop(herr)
			err = cmp.Or(err, herr)
		}
	}
	ended := end()
	switch cause := context.Cause(alive); {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err != nil || done:
		return false, err
	case cause == nil:
		return false, ended
	case !errors.Is(cause, errKilled):
		return false, cause
	}
	return true, nil
}

func (l *Lives) longest() time.Duration { return cmp.Or(l.Silence, math.MaxInt64) }

// heard handles a line of a process that will be killed as k says.
func (l *Lives) heard(k Kill, word string, value []byte) error {
	hear := l.Hear[word]
	switch word {
	case "done":
		return nil
	case "here":
		time.AfterFunc(k.After, l.kill)
		return nil
	case "fail":
		hear = Hears(func(why string) error { return fmt.Errorf("its process failed: %s", why) })
	}
	if hear == nil {
		return fmt.Errorf("a process said %q %.200s", word, value)
	}
	if err := hear(value); err != nil {
		return fmt.Errorf("a process said %q %.200s: %w", word, value, err)
	}
	return nil
}

// start starts a process that does w and is killed when ctx is done. After all its lines were read,
// end returns why the process has ended.
func start(ctx context.Context, w Work) (lines *bufio.Scanner, end func() error, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("starting a process: %w", err)
		}
	}()
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	order, err := json.Marshal(w)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, self, childArg, fmt.Sprintf("%T", w))
	stderr := new(bytes.Buffer)
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	// if the process has already ended, the reader of its lines notices that
	_, _ = stdin.Write(append(order, '\n'))
	lines = bufio.NewScanner(stdout)
	lines.Buffer(nil, 64<<20)
	lines.Split(wholeLines)
	return lines, func() error {
		_ = stdin.Close()
		err := cmd.Wait()
		if err == nil {
			err = errors.New("without an error")
		}
		return fmt.Errorf("its process ended by itself: %w: %.2000s", err, stderr.String())
	}, nil
}

// wholeLines is bufio.ScanLines without the text after the last line end, which a dead process did
// not complete.
func wholeLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF {
		return len(data), nil, nil
	}
	return 0, nil, nil
}

// A Kill says when to kill a process: a time after the gate's "here", or, if Early is not 0, a time
// after its start.
type Kill struct {
	Gate         GateOrder
	After, Early time.Duration
}

// Never lets a process reach the end.
var Never = Kill{Gate: GateOrder{Here: ^uint64(0), Wait: ^uint64(0)}}

const (
	longestSlack = 4000 // records
	longestAfter = 5 * time.Millisecond
	longestJoin  = 60 * time.Millisecond // a consumer joins its group in about this time
)

// DrawKills draws a kill from each of n equal parts of the log, all of them before its end. At some
// kills a handler waits for the kill, others interrupt whatever runs. If requested, one in eight
// comes while the consumer starts.
func DrawKills(way uint64, n int, atStart bool) []Kill {
	kills := make([]Kill, n)
	part := float64(way) * 0.95 / float64(n)
	for i := range kills {
		k := &kills[i]
		k.Gate.Here = 1 + uint64((float64(i)+rand.Float64())*part)
		k.Gate.Wait = min(k.Gate.Here+rand.Uint64N(longestSlack), way-1)
		k.After = rand.N(longestAfter)
		if atStart && rand.IntN(8) == 0 {
			k.Gate.Here, k.After = 0, rand.N(longestJoin)
		}
	}
	return kills
}

// LeastPerKill is the minimum number of events for each kill.
const LeastPerKill = 50
