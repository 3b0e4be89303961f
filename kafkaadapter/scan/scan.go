// Package scan reads the last hours of a topic and reports its duplicates, before anything is
// adopted. It joins no group and commits no offset.
//
// A temporary engine judges the records by their ids alone: a record is a copy if its id was read
// before, whatever the times of the two say. The engine's clock is that of the scan, so distances
// are computed from the timestamps of the records. Values are compared by a hash: a record with the
// id of another and a different value is not a copy, but a mismatch.
package scan

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// Defaults for zero values of Options.
const (
	DefaultMaxStoreBytes = 4 << 30
	DefaultQuiet         = 10 * time.Second
)

// Options configure Run. Client, Topic and Since must be set.
type Options struct {
	// Client configures the Kafka client: seed brokers, TLS, SASL. The scan sets what it consumes,
	// reads committed records, and bounds the memory of decompression.
	Client []kgo.Opt
	// Topic is read from the first record whose timestamp is not before Since, to its end at the
	// start of the scan.
	Topic string
	Since time.Time
	// Identify finds the id and the time of the event in a record. Records that have only their
	// position are counted as records without an id.
	Identify identify.Rules
	// MaxStoreBytes ends the scan when the temporary store has this size on disk. It is
	// checked after each poll. 0 = DefaultMaxStoreBytes.
	MaxStoreBytes uint64
	// Quiet ends the scan when the brokers have sent nothing for this time, although the ends of
	// partitions are not reached. 0 = DefaultQuiet.
	Quiet time.Duration
}

func (o *Options) complete() error {
	switch {
	case o.Topic == "":
		return errors.New("scan: Options.Topic is empty: name the topic to read")
	case o.Since.IsZero():
		return errors.New("scan: Options.Since is zero: give the time from which the topic is read")
	case o.Quiet < 0:
		return fmt.Errorf("scan: Options.Quiet is %v: give 0 or more", o.Quiet)
	}
	if err := o.Identify.Validate(); err != nil {
		return fmt.Errorf("scan: Options.Identify: %w", err)
	}
	if o.MaxStoreBytes == 0 {
		o.MaxStoreBytes = DefaultMaxStoreBytes
	}
	if o.Quiet == 0 {
		o.Quiet = DefaultQuiet
	}
	return nil
}

// Run scans a topic with a temporary store, which must be empty. It closes the store; the caller
// removes its files. If the scan ends early, because ctx has ended, the store has reached its
// bound or the brokers are quiet, Run returns the report of what was read, whose Incomplete says
// why. An error means that there is no report.
func Run(ctx context.Context, store storage.Store, o Options) (report *Report, err error) {
	if err := o.complete(); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	eng, err := engine.Open(store, engine.Options{DefaultScope: "scan", Nightly: engine.Nightly{Off: true}})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	defer func() { err = errors.Join(err, eng.Close()) }()
	r, err := newReader(ctx, o)
	if err != nil {
		return nil, err
	}
	defer r.client.Close()
	s := &scanner{eng: eng, opt: o, report: newReport(o, r.partitions)}
	for s.report.Incomplete == "" && !r.atEnd() {
		records, why, err := r.poll(ctx)
		if err != nil {
			return nil, err
		}
		s.report.Incomplete = why
		if err := s.judge(records); err != nil {
			return nil, err
		}
	}
	s.report.Partitions = r.partitions
	s.report.Distances = s.distances.figures()
	return s.report, nil
}

// A scanner judges records and counts the verdicts.
type scanner struct {
	eng       *engine.Engine
	opt       Options
	report    *Report
	distances distances

	events []engine.Event // of the records of one call of judge, to be reused
}

// window is how long the claims last, by the clock of the scan: longer than any scan takes.
const window = 28 * 24 * time.Hour

// judge claims the events of records, in their order. It is not interrupted: what was read is in the
// report.
func (s *scanner) judge(records []*kgo.Record) error {
	s.events = s.events[:0]
	for _, rec := range records {
		if ev, ok := s.identify(rec); ok {
			s.events = append(s.events, ev)
		}
	}
	results, err := s.eng.TryClaimBatch(context.Background(), s.events)
	if err != nil {
		return err
	}
	for i := range results {
		if err := s.count(&s.events[i], &results[i]); err != nil {
			return err
		}
	}
	stats, err := s.eng.Stats()
	if err != nil {
		return err
	}
	s.report.StoreBytes = stats.Store.DiskBytes
	if stats.Store.DiskBytes >= s.opt.MaxStoreBytes && s.report.Incomplete == "" {
		s.report.Incomplete = fmt.Sprintf("the temporary store has reached its bound of %d bytes", s.opt.MaxStoreBytes)
	}
	return nil
}

// identify returns the event of a record; false if it has no id that a copy would share.
func (s *scanner) identify(rec *kgo.Record) (engine.Event, bool) {
	s.report.Records++
	id, err := s.opt.Identify.Identify(rec, [16]byte{1}) // any topic id: positions are not claimed
	switch {
	case errors.Is(err, identify.ErrNoID) || err == nil && id.IDRule == identify.IDPosition:
		s.report.WithoutID++
		return engine.Event{}, false
	case err != nil && !errors.Is(err, identify.ErrNoTime):
		s.report.Unreadable++
		return engine.Event{}, false
	}
	s.report.IDRules[id.IDRule.String()]++
	if err != nil {
		s.report.WithoutTime++
	} else {
		s.report.TimeRules[id.TimeRule.String()]++
	}
	return engine.Event{
		ID: id.ID, Window: window, Sent: identify.Sent(rec), Fingerprint: fingerprint(rec.Value),
		Origin: engine.Origin{Topic: rec.Topic, Partition: rec.Partition, Offset: rec.Offset},
	}, true
}

// fingerprint returns a hash of 16 bytes, in which nil is not an empty value.
func fingerprint(value []byte) string {
	h := sha256.New()
	if value != nil {
		h.Write([]byte{1})
	}
	h.Write(value)
	return string(h.Sum(nil)[:16])
}

// count adds the verdict on an event to the report.
func (s *scanner) count(ev *engine.Event, res *engine.Result) error {
	switch res.Verdict {
	case engine.Claimed:
		s.report.Events++
	case engine.Mismatch:
		s.report.Mismatches++
	case engine.Duplicate:
		s.report.Copies++
		first := &res.Record
		if first.Origin.Partition != ev.Origin.Partition {
			s.report.Crossing++
		}
		if first.SentUnixMilli != 0 && !ev.Sent.IsZero() {
			s.distances.add(max(ev.Sent.UnixMilli()-first.SentUnixMilli, first.SentUnixMilli-ev.Sent.UnixMilli()))
		}
	default:
		if _, bad := errors.AsType[*engine.EventError](res.Err); !bad {
			return fmt.Errorf("scan: judging %v: %v: %w", ev.Origin, res.Verdict, res.Err)
		}
		s.report.Unreadable++ // such as an id that is too long
	}
	return nil
}
