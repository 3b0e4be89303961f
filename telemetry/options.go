package telemetry

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/hapax-dev/hapax/redact"
)

// Options configure an Observer. Registerer must be given; the rest may be zero.
type Options struct {
	// Registerer registers the metrics. To distinguish several engines of one process, give each a
	// separate Observer, with prometheus.WrapRegistererWith and a label.
	Registerer prometheus.Registerer

	// Namespace is put before the names of metrics (im2be_dedup_claims_total) and spans
	// (im2be.dedup.try_claim). Empty: dedup_claims_total and dedup.try_claim. Letters, digits and
	// '_', not beginning with a digit.
	Namespace string

	// MaxScopes is the maximum number of scopes with a separate label value: the first ones that
	// are seen. The others are counted together as OtherScopes. 0 = DefaultMaxScopes.
	MaxScopes int

	// MaxWeeks is the maximum number of weeks with a separate label value: the newest ones. The
	// others are summed up as OlderWeeks. 0 = DefaultMaxWeeks; negative = no figures by week, which
	// are then never requested from the engine.
	MaxWeeks int

	// WeeksEvery is how long figures by week are kept before a scrape reads them again. Reading
	// them occupies the engine's committer for a moment, and reads a size from the store for each
	// scope and week. 0 = DefaultWeeksEvery.
	WeeksEvery time.Duration

	// TracerProvider is called for each call that claims and for each transaction, so a provider
	// can be registered later. If it returns nil, there are no spans. nil = otel.GetTracerProvider.
	TracerProvider func() trace.TracerProvider

	// SpanPerEvent makes a span for each event of a batch, instead of one for the batch, and a span
	// for each event that a transaction judges, as a child of the transaction's span.
	SpanPerEvent bool

	// IDs says how ids of events are shown in spans. The zero value shows them.
	IDs redact.IDs
}

// The defaults of Options.
const (
	DefaultMaxScopes  = 100
	DefaultMaxWeeks   = 12
	DefaultWeeksEvery = time.Minute
)

var namespaces = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

func (o Options) withDefaults() (Options, error) {
	if o.MaxScopes == 0 {
		o.MaxScopes = DefaultMaxScopes
	}
	if o.MaxWeeks == 0 {
		o.MaxWeeks = DefaultMaxWeeks
	}
	if o.WeeksEvery == 0 {
		o.WeeksEvery = DefaultWeeksEvery
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider
	}
	switch {
	case o.Registerer == nil:
		return o, errors.New("telemetry: Options.Registerer is nil: give a registry, or a new one that is not scraped if only spans are wanted")
	case o.Namespace != "" && !namespaces.MatchString(o.Namespace):
		return o, fmt.Errorf("telemetry: Options.Namespace is %q: give letters, digits and '_', not beginning with a digit", o.Namespace)
	case o.MaxScopes < 0:
		return o, errors.New("telemetry: Options.MaxScopes is negative")
	case o.WeeksEvery < 0:
		return o, errors.New("telemetry: Options.WeeksEvery is negative")
	}
	if err := o.IDs.Check(); err != nil {
		return o, fmt.Errorf("telemetry: Options.IDs: %w", err)
	}
	return o, nil
}
