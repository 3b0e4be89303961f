package consumer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/hapax-dev/hapax/bench/peers/servers"
)

// streamsOrder is the input of the application: see Order.java.
type streamsOrder struct {
	Brokers     string `json:"brokers"`
	Topic       string `json:"topic"`
	Application string `json:"application"`
	Records     int64  `json:"records"`
	Accounts    int    `json:"accounts"`
	Partitions  int    `json:"partitions"`
	Work        Work   `json:"work"`
	Dir         string `json:"dir"`
	Hold        bool   `json:"hold"`
	WarmTopic   string `json:"warmTopic"`
	WarmRecords int64  `json:"warmRecords"`
}

// streamsResult is its final output.
type streamsResult struct {
	Seconds  float64       `json:"seconds"`
	Claims   uint64        `json:"claims"`
	Balances map[int]int64 `json:"balances"`
}

// javaOptions are the options of the JVM: the garbage collector with the highest throughput, and a
// heap that is large enough for few collections.
var javaOptions = []string{"-Xms2g", "-Xmx2g", "-XX:+UseParallelGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"}

// runStreams runs the application as a child process, which ends with this process.
func runStreams(ctx context.Context, o Order, progress func(uint64)) (r Result, err error) {
	order := streamsOrder{
		Brokers: strings.Join(o.Brokers, ","), Topic: o.Topic, Application: o.Group, Records: sum(o.Ends), Accounts: o.Accounts,
		Partitions: len(o.Ends), Work: o.Work, Dir: o.Dir, Hold: o.Hold, WarmTopic: o.WarmTopic, WarmRecords: o.WarmRecords,
	}
	line, err := json.Marshal(order)
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, "java", append(javaOptions, "-cp", o.Program, "Main")...)
	servers.EndWithParent(cmd)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return r, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := cmd.Start(); err != nil {
		return r, err
	}
	defer func() {
		_ = in.Close() // it ends
		if werr := cmd.Wait(); werr != nil && err == nil {
			err = fmt.Errorf("the Java process: %w: %.2000s", werr, stderr.String())
		}
	}()
	if _, err := in.Write(append(line, '\n')); err != nil {
		return r, fmt.Errorf("the Java process does not read its order: %w", err)
	}
	return readStreams(&o, bufio.NewScanner(out), progress)
}

// readStreams reads the output of the application up to its result. The processor time of
// the process and the broker is counted from the end of the warm-up.
func readStreams(o *Order, lines *bufio.Scanner, progress func(uint64)) (r Result, err error) {
	warm := 0.0
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "warm":
			if warm, err = o.usage(); err != nil {
				return r, err
			}
		case "at":
			n, err := strconv.ParseUint(rest, 10, 64)
			if err != nil {
				return r, err
			}
			progress(n)
		case "result":
			var got streamsResult
			if err := json.Unmarshal([]byte(rest), &got); err != nil {
				return r, err
			}
			used, err := o.usage()
			return Result{Seconds: got.Seconds, Claims: got.Claims, Balances: o.fold(got.Balances), CPUSeconds: used - warm}, err
		case "fail":
			return r, errors.New(rest)
		}
	}
	if err := lines.Err(); err != nil {
		return r, err
	}
	return r, errors.New("the Java process ended")
}

// usage returns the processor time of this process, its descendants, and the broker if it is known.
func (o *Order) usage() (seconds float64, err error) {
	seconds, err = servers.CPUSeconds(os.Getpid())
	if err == nil && o.Broker != 0 {
		var broker float64
		broker, err = servers.CPUSeconds(o.Broker)
		seconds += broker
	}
	return seconds, err
}

func sum(ends []int64) (n int64) {
	for _, end := range ends {
		n += end
	}
	return n
}
