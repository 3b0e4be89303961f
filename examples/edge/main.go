// Command edge shows deduplication on a small device: the engine on one bbolt file, without Kafka.
// It reads one event from each line, an id and a time in RFC 3339, and prints the verdict and the
// id:
//
//	printf 'reading-7 2026-03-04T12:00:00Z\n' | go run ./examples/edge -dir edge.claims
//
// The program links neither Pebble nor a Kafka client nor telemetry; `make edge` prints its size
// for arm and arm64.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
)

// judge claims each event of in and prints its verdict to out, until in or ctx ends.
func judge(ctx context.Context, eng *engine.Engine, in io.Reader, out io.Writer) error {
	lines, ended := read(ctx, in)
	for n := int64(0); ; n++ {
		var line string
		select {
		case <-ctx.Done():
			return nil // every printed verdict is durable
		case err := <-ended:
			return err
		case line = <-lines:
		}
		id, at, _ := strings.Cut(line, " ")
		when, err := time.Parse(time.RFC3339, at)
		if err != nil {
			return err
		}
		r, err := eng.TryClaim(ctx, engine.Event{
			Scope: "edge", ID: []byte(id), Time: when, Origin: engine.Origin{Topic: "lines", Offset: n},
		})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, r.Verdict, id); err != nil {
			return err
		}
	}
}

// read sends the lines of in, and the error that ends them, until ctx ends. After that it may still
// wait for a line.
func read(ctx context.Context, in io.Reader) (<-chan string, <-chan error) {
	lines, ended := make(chan string), make(chan error, 1)
	go func() {
		scanner := bufio.NewScanner(in)
		for scanner.Scan() {
			select {
			case lines <- scanner.Text():
			case <-ctx.Done():
				return
			}
		}
		ended <- scanner.Err()
	}()
	return lines, ended
}

func run(ctx context.Context, dir string) (err error) {
	store, err := bolt.Open(dir, bolt.Options{})
	if err != nil {
		return err
	}
	eng, err := engine.Open(store, engine.Options{RetentionWeeks: engine.KeepAll, ExpectedPerWeek: 1 << 16})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := eng.Close(); err == nil {
			err = cerr
		}
	}()
	return judge(ctx, eng, os.Stdin, os.Stdout)
}

func main() {
	dir := flag.String("dir", "edge.claims", "directory of the store")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir); err != nil {
		log.Panic(err)
	}
}
