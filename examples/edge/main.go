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
	"strings"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
)

// judge claims each event of in and prints its verdict to out.
func judge(ctx context.Context, eng *engine.Engine, in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	for n := int64(0); lines.Scan(); n++ {
		id, at, _ := strings.Cut(lines.Text(), " ")
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
	return lines.Err()
}

func run(dir string) (err error) {
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
	return judge(context.Background(), eng, os.Stdin, os.Stdout)
}

func main() {
	dir := flag.String("dir", "edge.claims", "directory of the store")
	flag.Parse()
	if err := run(*dir); err != nil {
		log.Fatal(err)
	}
}
