package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/peers/traffic"
)

// A topic holds a log.
type topic struct {
	brokers []string
	name    string
	ends    []int64
	client  *kgo.Client
	admin   *kadm.Client
}

// startKafka starts a Kafka of our own, and returns its address and what ends it.
func startKafka(ctx context.Context, cache string) (brokers []string, end func(), err error) {
	root, err := findRoot()
	if err != nil {
		return nil, nil, err
	}
	script := filepath.Join(root, ".ci", "kafka", "broker")
	env := append(os.Environ(), "KAFKA_DIR="+filepath.Join(cache, "kafka"), "KAFKA_PORT=free", "KAFKA_JVM=-Xms1g -Xmx1g -XX:+UseSerialGC")
	broker := func(ctx context.Context, what string) (string, error) {
		cmd := exec.CommandContext(ctx, script, what)
		cmd.Env, cmd.Stderr = env, os.Stderr
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	say("starting a Kafka")
	if _, err := broker(ctx, "up"); err != nil {
		return nil, nil, fmt.Errorf("starting Kafka: %w: give --brokers", err)
	}
	address, err := broker(ctx, "address")
	end = func() { _, _ = broker(context.WithoutCancel(ctx), "down") }
	if err != nil {
		end()
		return nil, nil, err
	}
	return []string{address}, end, nil
}

// newTopic makes a topic with the log, and its dead-letter topic.
func newTopic(ctx context.Context, brokers []string, log *traffic.Log, partitions int) (t *topic, err error) {
	t = &topic{brokers: brokers, name: fmt.Sprintf("peers-%x", time.Now().UnixNano())}
	t.client, err = kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(50_000))
	if err != nil {
		return nil, err
	}
	t.admin = kadm.NewClient(t.client)
	segment := "268435456" // the brokers of tests have small ones
	made, err := t.admin.CreateTopics(ctx, int32(partitions), -1, map[string]*string{"segment.bytes": &segment}, t.name)
	if err == nil {
		err = made.Error()
	}
	if err == nil {
		made, err = t.admin.CreateTopics(ctx, 1, -1, nil, t.name+"-dlt")
	}
	if err = errors.Join(err, made.Error()); err == nil {
		err = t.fill(ctx, log)
	}
	if err != nil {
		t.remove()
		return nil, fmt.Errorf("filling a topic: %w", err)
	}
	return t, nil
}

// fill produces the log; on its return the brokers have acknowledged all of it.
func (t *topic) fill(ctx context.Context, log *traffic.Log) error {
	failed := make(chan error, 1)
	seq, at := log.Begin(), time.Now()
	for range log.N {
		t.client.Produce(ctx, seq.Record(t.name, at), func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
		if len(failed) > 0 {
			break
		}
	}
	if err := t.client.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
	}
	listed, err := t.admin.ListEndOffsets(ctx, t.name)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return err
	}
	t.ends = make([]int64, len(listed[t.name]))
	sum := int64(0)
	for p, o := range listed[t.name] {
		t.ends[p] = o.Offset
		sum += o.Offset
	}
	if sum != int64(log.N) {
		return fmt.Errorf("%d records were sent, the brokers have %d", log.N, sum)
	}
	return nil
}

// remove deletes the topic, also when the run was interrupted.
func (t *topic) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, _ = t.admin.DeleteTopics(ctx, t.name, t.name+"-dlt")
	t.client.Close()
}
