package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
	"github.com/hapax-dev/hapax/kafkaadapter/scan"
)

type scanCmd struct {
	Topic    string        `help:"Topic to read." required:""`
	Last     time.Duration `help:"How far back to begin, by the timestamps of records." default:"24h"`
	Brokers  []string      `help:"Addresses of brokers." default:"127.0.0.1:9092"`
	TLS      bool          `help:"Connect with TLS, and check the brokers with the roots of the system."`
	IDHeader []string      `help:"Headers that may have the id, in this order, in place of the default ones."`
	MaxBytes uint64        `help:"End when the temporary store has this size on disk." default:"4294967296"`
	Dir      string        `help:"Directory for the temporary store." placeholder:"DIR"`
}

type scanRow struct {
	Topic       string           `json:"topic"`
	Since       time.Time        `json:"since"`
	Records     int64            `json:"records"`
	Events      int64            `json:"events"`
	Copies      int64            `json:"copies"`
	Crossing    int64            `json:"crossing"`
	Mismatches  int64            `json:"mismatches"`
	P50         string           `json:"distance_p50"`
	P99         string           `json:"distance_p99"`
	Window      string           `json:"window"`
	Max         string           `json:"distance_max"`
	IDRules     map[string]int64 `json:"ids_by_rule"`
	TimeRules   map[string]int64 `json:"times_by_rule"`
	WithoutID   int64            `json:"without_id"`
	WithoutTime int64            `json:"without_time"`
	Unreadable  int64            `json:"unreadable"`
	StoreBytes  uint64           `json:"temporary_store_bytes"`
	Incomplete  string           `json:"incomplete"`
}

// Run implements the command.
func (c *scanCmd) Run(ctx context.Context, out *output) (err error) {
	if c.Last <= 0 {
		return usageError(fmt.Sprintf("--last is %v: give more than 0", c.Last))
	}
	dir, err := os.MkdirTemp(c.Dir, "hapax-scan-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := pebble.Open(filepath.Join(dir, "store"), pebble.Options{})
	if err != nil {
		return err
	}
	client := []kgo.Opt{kgo.SeedBrokers(c.Brokers...)}
	if c.TLS {
		client = append(client, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	r, err := scan.Run(ctx, store, scan.Options{
		Client: client, Topic: c.Topic, Since: time.Now().Add(-c.Last), Identify: identify.Rules{IDHeaders: c.IDHeader}, MaxStoreBytes: c.MaxBytes,
	})
	if err != nil {
		return err
	}
	d := r.Distances
	out.object(scanRow{
		r.Topic, r.Since, r.Records, r.Events, r.Copies, r.Crossing, r.Mismatches, d.P50.String(), d.P99.String(), d.Window.String(), d.Max.String(),
		r.IDRules, r.TimeRules, r.WithoutID, r.WithoutTime, r.Unreadable, r.StoreBytes, r.Incomplete,
	})
	if r.Incomplete != "" {
		return incomplete("the topic was not read to its end: " + r.Incomplete)
	}
	return nil
}
