package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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

// A broker is a Kafka of our own.
type broker struct {
	script, dir string
	address     string
}

// startKafka starts a broker; its data are kept nowhere.
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

// pid is the id of its process.
func (b *broker) pid() (int, error) {
	text, err := os.ReadFile(filepath.Join(b.dir, "pid"))
	if err != nil {
		return 0, fmt.Errorf("looking up Kafka's process: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func (b *broker) end(ctx context.Context) { _, _ = b.do(context.WithoutCancel(ctx), "down") }

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

// removeOthers deletes the topics whose names begin so, also when the run was interrupted.
func (t *topic) removeOthers(ctx context.Context, prefix string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	all, err := t.admin.ListTopics(ctx)
	if err != nil {
		return err
	}
	var names []string
	for name := range all {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	_, err = t.admin.DeleteTopics(ctx, names...)
	return err
}

// remove deletes the topic, also when the run was interrupted.
func (t *topic) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, _ = t.admin.DeleteTopics(ctx, t.name, t.name+"-dlt")
	t.client.Close()
}
