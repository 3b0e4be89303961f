package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hapax-dev/hapax/bench/internal/topics"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
)

// A broker is a Kafka that this program starts.
type broker struct {
	script, dir string
	address     string
}

// startKafka starts a broker whose data is removed at the end.
func startKafka(ctx context.Context, cache string) (*broker, error) {
	root, err := findRoot()
	if err != nil {
		return nil, err
	}
	b := &broker{script: filepath.Join(root, ".ci", "kafka", "broker"), dir: filepath.Join(cache, "kafka")}
	say("starting a Kafka")
	if _, err := b.do(ctx, "up"); err != nil {
		return nil, fmt.Errorf("starting Kafka: %w: give --brokers", err)
	}
	if b.address, err = b.do(ctx, "address"); err != nil {
		b.end(ctx)
		return nil, err
	}
	return b, nil
}

func (b *broker) do(ctx context.Context, what string) (string, error) {
	cmd := exec.CommandContext(ctx, b.script, what)
	cmd.Env = append(os.Environ(), "KAFKA_DIR="+b.dir, "KAFKA_PORT=free", "KAFKA_JVM=-Xms1g -Xmx1g -XX:+UseSerialGC")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// restart kills the broker, and starts it again on the same data.
func (b *broker) restart(ctx context.Context) error {
	if _, err := b.do(ctx, "kill"); err != nil {
		return fmt.Errorf("killing Kafka: %w", err)
	}
	if _, err := b.do(ctx, "up"); err != nil {
		return fmt.Errorf("starting Kafka after a kill: %w", err)
	}
	return nil
}

// pid returns the id of its process.
func (b *broker) pid() (int, error) {
	text, err := os.ReadFile(filepath.Join(b.dir, "pid"))
	if err != nil {
		return 0, fmt.Errorf("looking up Kafka's process: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func (b *broker) end(ctx context.Context) { _, _ = b.do(context.WithoutCancel(ctx), "down") }

// fill makes a topic with the log.
func fill(ctx context.Context, b *topics.Broker, log *traffic.Log, partitions int) (*topics.Filled, error) {
	say("filling a topic with %d records", log.N)
	segment := "268435456" // the brokers of tests have small segments
	return b.Fill(ctx, log, partitions, map[string]*string{"segment.bytes": &segment})
}
