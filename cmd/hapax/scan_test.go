package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func TestScanReportsTheDuplicatesOfATopic(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	topic, dir := b.CreateTopic(t, 2, nil), t.TempDir()
	record := func(partition int32, id string) *kgo.Record {
		return &kgo.Record{Topic: topic, Partition: partition, Value: []byte(id), Headers: []kgo.RecordHeader{{Key: "order_id", Value: []byte(id)}}}
	}
	b.Produce(t, record(0, "a"), record(0, "a"), record(0, "b"), record(1, "b"))
	args := []string{"scan", "--topic", topic, "--brokers", strings.Join(b.Addrs(), ","), "--dir", dir, "--id-header", "order_id"}

	var got scanRow
	if err := json.Unmarshal([]byte(hapax(t, append(args, "-o", "json")...).ends(0, "").stdout), &got); err != nil {
		t.Fatal(err)
	}
	if got.Records != 4 || got.Events != 2 || got.Copies != 2 || got.Crossing != 1 || got.IDRules["header"] != 4 {
		t.Errorf("the report is %+v", got)
	}
	if table := hapax(t, args...).ends(0, "").stdout; !strings.Contains(table, "header 4") {
		t.Errorf("the table is\n%s", table)
	}
	hapax(t, append(args, "--max-bytes", "1")...).ends(exitIncomplete, "bound of 1 bytes")
	hapax(t, append(args, "--last", "0s")...).ends(exitUsage, "--last")
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v (%v)", left, err)
	}
}
