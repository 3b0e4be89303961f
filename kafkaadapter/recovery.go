package kafkaadapter

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A RecoveryPolicy determines where to read if the store and Kafka do not agree on a partition's
// offset. The zero value stops the partition with a *PositionError.
type RecoveryPolicy uint8

// The recovery policies.
const (
	Stop       RecoveryPolicy = iota // do not read the partition; report a PositionError
	TrustStore                       // read from the store's offset
	TrustKafka                       // read from the offset that is committed in Kafka
	StartOver                        // read from the log's start
)

func (w RecoveryPolicy) String() string {
	switch w {
	case Stop:
		return "stop"
	case TrustStore:
		return "trust_store"
	case TrustKafka:
		return "trust_kafka"
	case StartOver:
		return "start_over"
	}
	return "RecoveryPolicy(" + strconv.Itoa(int(w)) + ")"
}

// Recovery chooses the policy for each kind of disagreement. With the zero value, each of them
// stops the partition. No policy removes claims: a claimed event is still a duplicate.
type Recovery struct {
	BelowLog     RecoveryPolicy // ErrBelowLog: Stop, StartOver
	AboveLog     RecoveryPolicy // ErrAboveLog: Stop, StartOver, TrustKafka
	Recreated    RecoveryPolicy // ErrRecreated: Stop, StartOver, TrustKafka
	ForeignStore RecoveryPolicy // ErrForeignStore: Stop, TrustStore, TrustKafka, StartOver
	EmptyStore   RecoveryPolicy // ErrEmptyStore: Stop, TrustKafka, StartOver
	KafkaAhead   RecoveryPolicy // ErrKafkaAhead: Stop, TrustStore, TrustKafka
	OffsetReset  RecoveryPolicy // ErrOffsetReset: Stop, TrustStore, TrustKafka
	LogDiverged  RecoveryPolicy // ErrLogDiverged: Stop, TrustStore, StartOver
	ModeChanged  RecoveryPolicy // ErrModeChanged: Stop, TrustStore

	PartitionsChanged RecoveryPolicy // ErrPartitionsChanged: Stop, TrustStore
}

// A disagreement is one row of Recovery: its error, its field, and the policies that apply.
type disagreement struct {
	kind   error
	field  string
	policy func(p *Recovery) *RecoveryPolicy
	ways   []RecoveryPolicy
}

// way is the chosen policy.
func (d disagreement) way(p *Recovery) RecoveryPolicy { return *d.policy(p) }

var disagreements = []disagreement{
	{ErrBelowLog, "BelowLog", func(p *Recovery) *RecoveryPolicy { return &p.BelowLog }, []RecoveryPolicy{StartOver}},
	{ErrAboveLog, "AboveLog", func(p *Recovery) *RecoveryPolicy { return &p.AboveLog }, []RecoveryPolicy{StartOver, TrustKafka}},
	{ErrRecreated, "Recreated", func(p *Recovery) *RecoveryPolicy { return &p.Recreated }, []RecoveryPolicy{StartOver, TrustKafka}},
	{ErrForeignStore, "ForeignStore", func(p *Recovery) *RecoveryPolicy { return &p.ForeignStore }, []RecoveryPolicy{TrustStore, TrustKafka, StartOver}},
	{ErrEmptyStore, "EmptyStore", func(p *Recovery) *RecoveryPolicy { return &p.EmptyStore }, []RecoveryPolicy{TrustKafka, StartOver}},
	{ErrKafkaAhead, "KafkaAhead", func(p *Recovery) *RecoveryPolicy { return &p.KafkaAhead }, []RecoveryPolicy{TrustStore, TrustKafka}},
	{ErrOffsetReset, "OffsetReset", func(p *Recovery) *RecoveryPolicy { return &p.OffsetReset }, []RecoveryPolicy{TrustStore, TrustKafka}},
	{ErrLogDiverged, "LogDiverged", func(p *Recovery) *RecoveryPolicy { return &p.LogDiverged }, []RecoveryPolicy{TrustStore, StartOver}},
	{ErrModeChanged, "ModeChanged", func(p *Recovery) *RecoveryPolicy { return &p.ModeChanged }, []RecoveryPolicy{TrustStore}},
	{ErrPartitionsChanged, "PartitionsChanged", func(p *Recovery) *RecoveryPolicy { return &p.PartitionsChanged }, []RecoveryPolicy{TrustStore}},
}

func disagreementOf(kind error) disagreement {
	for _, d := range disagreements {
		if errors.Is(kind, d.kind) {
			return d
		}
	}
	panic("hapax: no such disagreement: " + kind.Error())
}

// waysOf names the field of Recovery and the policies for a kind, for an error's text.
func waysOf(kind error) string {
	d := disagreementOf(kind)
	names := make([]string, len(d.ways))
	for i, w := range d.ways {
		names[i] = w.String()
	}
	return d.field + " = " + strings.Join(names, ", ")
}

// fits reports whether the policy applies to the disagreement.
func fits(kind error, policy RecoveryPolicy) bool {
	return slices.Contains(disagreementOf(kind).ways, policy)
}

func (p *Recovery) check() error {
	for _, d := range disagreements {
		if way := d.way(p); way != Stop && !fits(d.kind, way) {
			return fmt.Errorf("%w: Recovery.%s cannot be %v: use %s, or the zero value to stop the partition", ErrOption, d.field, way, waysOf(d.kind))
		}
	}
	return nil
}
