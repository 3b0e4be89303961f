package telemetry

import "go.opentelemetry.io/otel/attribute"

// The names of metrics are in observer.go and figures.go.

// The attributes of spans. Dashboards and alerts use these names, so they do not change.
const (
	AttrScope     = attribute.Key("consumer.scope_id")
	AttrEventID   = attribute.Key("event.id")
	AttrWeekStart = attribute.Key("event.week_start") // the Monday, as in 2025-05-05
	AttrTopic     = attribute.Key("kafka.topic")
	AttrPartition = attribute.Key("kafka.partition")
	AttrOffset    = attribute.Key("kafka.offset")
	AttrOutcome   = attribute.Key("dedup.outcome") // engine.Verdict.String

	// Of the span of a batch or a transaction. In addition to AttrEvents it has a count for each
	// verdict, "dedup." and the verdict's name.
	AttrEvents      = attribute.Key("dedup.events")
	attrCountPrefix = "dedup."
)

// The names of spans and of the tracer. Options.Namespace and a dot are put before the former.
const (
	SpanClaim      = "dedup.try_claim"
	SpanClaimBatch = "dedup.try_claim_batch"
	SpanUpdate     = "dedup.update"

	// Instrumentation is the name of the tracer.
	Instrumentation = "github.com/hapax-dev/hapax/telemetry"
)

// The labels of metrics, and the values for sums of several.
const (
	LabelScope   = "consumer_scope_id"
	LabelOutcome = "outcome"
	LabelCall    = "call"       // single, batch, transaction
	LabelState   = "state"      // disk, reclaimable
	LabelWeek    = "week_start" // the Monday, as in 2025-05-05

	OtherScopes   = "_other"   // every scope beyond Detail.MaxScopes
	InvalidScopes = "_invalid" // scopes that the engine rejects: blank ones, and those that are too long
	OlderWeeks    = "_older"   // the sum over the weeks before the newest Detail.MaxWeeks
)

// Prefixes of the names of metrics, after the namespace.
const subsystem = "dedup"
