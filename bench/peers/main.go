// Command peers compares Hapax with other ways to deduplicate, on this machine: consumers of a
// topic on a real Kafka, and systems that keep claims. It finds the servers, runs all contenders in
// rotating rounds in separate processes, checks every result, kills every contender half-way, and
// prints tables; --out keeps the JSON for dedupbench report.
//
// docs/benchmarks.md has the commands and figures, docs/decisions/0035 the settings of the peers.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/peers/claimer"
	"github.com/hapax-dev/hapax/bench/peers/consumer"
	"github.com/hapax-dev/hapax/bench/peers/servers"
)

type cli struct {
	Command string `arg:"" help:"consumers: consume one topic of a real Kafka in several ways. claims: claim ids in several systems. all: both." enum:"all,consumers,claims" default:"all" optional:""`

	Cache string `help:"Directory for built programs and their jars; kept." default:"${cache}" type:"path"`
	Dir   string `help:"Directory for the data of the contenders, on the disk to be measured; emptied. Without it: a temporary one." type:"path"`
	Out   string `help:"Directory for the JSON, one file for each part." default:"${out}" type:"path"`

	Rounds int      `help:"Rounds; each contender is once in each." default:"3"`
	Only   []string `help:"Contenders, by name. Without it: all." placeholder:"NAME,..."`
	Quick  bool     `help:"Half an hour in place of two: at most 200,000 records and 1,000,000 ids; a second for each setting that is tried, and 15 for each run of claims."`

	Consumers consumersFlags `embed:""`
	Claims    claimsFlags    `embed:""`
}

// run runs the parts that were asked for.
func (c *cli) run(ctx context.Context) (err error) {
	if c.Quick {
		c.hurry()
	}
	if c.Command != "claims" {
		err = c.runConsumers(ctx)
	}
	if c.Command != "consumers" {
		err = errors.Join(err, c.runClaims(ctx))
	}
	return err
}

// hurry reduces what is measured.
func (c *cli) hurry() {
	c.Consumers.Records = min(c.Consumers.Records, 200_000)
	for i := range c.Claims.IDs {
		c.Claims.IDs[i] = min(c.Claims.IDs[i], 1_000_000)
	}
	c.Claims.MaxSeconds, c.Claims.TuneSeconds = min(c.Claims.MaxSeconds, 15), min(c.Claims.TuneSeconds, 1)
}

func (c *cli) options(name string) servers.Options {
	return servers.Options{Cache: c.Cache, Dir: filepath.Join(c.Dir, name)}
}

// wanted reports whether a contender should run.
func (c *cli) wanted(name string) bool { return len(c.Only) == 0 || slices.Contains(c.Only, name) }

// script starts this program after building it.
const script = "bench/peers/run"

func main() {
	if code, ran := childMain(os.Args[1:]); ran {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// childMain does the work of a process, if the arguments request it.
func childMain(args []string) (code int, ran bool) {
	return runner.Main(args, &consumer.Order{}, &claimer.Order{})
}

func run(ctx context.Context) (err error) {
	var c cli
	root, err := findRoot()
	if err != nil {
		return err
	}
	kong.Parse(&c, kong.Name("peers"), kong.Description("Compares Hapax with other ways to deduplicate."), variables(root))
	if c.Dir == "" {
		if c.Dir, err = os.MkdirTemp("", "peers-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(c.Dir)) }()
	}
	if err := errors.Join(os.MkdirAll(c.Dir, 0o755), os.Chmod(c.Dir, 0o755), os.MkdirAll(c.Out, 0o755)); err != nil {
		return err
	}
	return c.run(ctx)
}

// variables are the defaults of flags that are not constants.
func variables(root string) kong.Vars {
	return kong.Vars{"limit": runLimit.String(), "cache": filepath.Join(root, ".peers"), "out": filepath.Join(root, ".peers", "results")}
}

// findRoot finds the root directory of the repository: the working directory or one above it that
// has the script that starts Kafka.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, serr := os.Stat(filepath.Join(dir, ".ci", "kafka", "broker")); serr == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("run it in a directory of the repository: .ci/kafka/broker is not above")
		}
	}
	return "", err
}

// keep writes a report as JSON to the directory of results.
func (c *cli) keep(name string, report any) error {
	b, err := json.Marshal(report)
	if err != nil {
		return err
	}
	path := filepath.Join(c.Out, name+".json")
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("keeping the report: %w", err)
	}
	fmt.Printf("\nkept in %s\n", path)
	return nil
}

// say reports progress.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
