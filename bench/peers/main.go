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
	Cache string `help:"Directory for built programs and their jars; kept." default:"${cache}" type:"path"`
	Dir   string `help:"Directory for the data of the contenders, on the disk to be measured; emptied. Without it: a temporary one." type:"path"`
	Out   string `help:"Directory for the JSON, one file for each command." default:"${out}" type:"path"`

	Rounds int      `help:"Rounds; each contender is once in each." default:"3"`
	Only   []string `help:"Contenders, by name. Without it: all." placeholder:"NAME,..."`
	Seed   uint64   `help:"Seed of the events." default:"1"`

	All       allCmd       `cmd:"" default:"1" help:"Everything below, one after the other."`
	Consumers consumersCmd `cmd:"" help:"Consume one topic of a real Kafka in several ways."`
	Claims    claimsCmd    `cmd:"" help:"Claim ids in several systems."`
}

func (c *cli) options(name string) servers.Options {
	return servers.Options{Cache: c.Cache, Dir: filepath.Join(c.Dir, name)}
}

// wanted reports whether a contender should run.
func (c *cli) wanted(name string) bool { return len(c.Only) == 0 || slices.Contains(c.Only, name) }

// allCmd has the most useful options of the other commands.
type allCmd struct {
	Brokers []string `help:"Kafka brokers, host:port. Without it: one of its own." placeholder:"HOST:PORT,..."`
	Records int      `help:"Records of the topic." default:"500000"`
	IDs     int      `help:"Ids to claim." name:"ids" default:"2000000"`
	Quick   bool     `help:"Half an hour in place of two: at most 200,000 records and 1,000,000 ids; a second for each setting that is tried, and 15 for each run of claims."`
}

func (a *allCmd) Run(ctx context.Context, c *cli) error {
	consumers, claims := a.parts()
	return errors.Join(consumers.Run(ctx, c), claims.Run(ctx, c))
}

// parts returns the other commands, with the options of allCmd and otherwise their defaults.
func (a *allCmd) parts() (consumersCmd, claimsCmd) {
	claims := claimsCmd{IDs: []int{a.IDs}, MaxSeconds: 60, Dup: 0.05, Batch: []int{1000, 10000}, InFlight: []int{1, 4, 8}, TuneSeconds: 3}
	consumers := consumersCmd{
		Brokers: a.Brokers, Records: a.Records, Dup: 0.2, Partitions: 6, Kill: true, Limit: runLimit,
		Works: []string{string(consumer.Shared), string(consumer.Partition), string(consumer.Claims)},
	}
	if a.Quick {
		consumers.Records = min(consumers.Records, 200_000)
		claims.IDs[0], claims.MaxSeconds, claims.TuneSeconds = min(a.IDs, 1_000_000), 15, 1
	}
	return consumers, claims
}

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
	command := kong.Parse(&c, kong.Name("peers"), kong.Description("Compares Hapax with other ways to deduplicate."),
		variables(root), kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(&c))
	if c.Dir == "" {
		if c.Dir, err = os.MkdirTemp("", "peers-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(c.Dir)) }()
	}
	if err := errors.Join(os.MkdirAll(c.Dir, 0o755), os.Chmod(c.Dir, 0o755), os.MkdirAll(c.Out, 0o755)); err != nil {
		return err
	}
	return command.Run()
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
