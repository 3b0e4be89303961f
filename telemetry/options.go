package telemetry

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/hapax-dev/hapax/internal/untrusted"
	"github.com/hapax-dev/hapax/redact"
)

// Options say where logs, metrics and traces go. They are the same for all packages: New takes them
// for the engine, and kafkaadapter, outbox, listener and its integrations have them as
// Options.Telemetry, so that an application fills in one value for all. The zero value of each field
// has a stated default.
//
// Packages that an edge build uses (engine, the stores, versions, idempotency) link neither
// Prometheus nor OpenTelemetry: the engine has an Observer, and the others at most a logger.
type Options struct {
	// Logger receives the log. nil = slog.Default(). Duplicates are logged at level debug by all
	// packages: they are expected, and counted.
	Logger *slog.Logger

	// IDs says how ids of events are shown in logs, spans and texts of errors. The zero value shows
	// them.
	IDs redact.IDs

	// Registerer registers the metrics. nil: none are registered. To distinguish several engines,
	// relays or consumers of one process, use prometheus.WrapRegistererWith and a label.
	Registerer prometheus.Registerer

	// Namespace is put before the names of metrics (im2be_dedup_claims_total) and spans
	// (im2be.dedup.try_claim). Empty: dedup_claims_total and dedup.try_claim. Letters, digits and
	// '_', not beginning with a digit.
	Namespace string

	// TracerProvider is called for each call that claims and for each transaction, so a provider
	// can be registered later. If it returns nil, there are no spans. nil = otel.GetTracerProvider.
	TracerProvider func() trace.TracerProvider

	// Propagator reads the trace context from a record's headers for its handler. nil = W3C trace
	// context. Add propagation.Baggage only if all producers are trusted: clients of the handler pass
	// baggage on to other services.
	Propagator propagation.TextMapPropagator
}

// Complete returns the options with their defaults, and with a Registerer that adds the Namespace,
// which is then empty; or the error of an invalid field. Packages that have Options.Telemetry call it.
func (o Options) Complete() (Options, error) {
	if o.Namespace != "" && !namespaces.MatchString(o.Namespace) {
		return o, fmt.Errorf("%s is %q: give letters, digits and '_', not beginning with a digit", "Namespace", o.Namespace) // after the name of the options
	}
	if err := o.IDs.Check(); err != nil {
		return o, fmt.Errorf("IDs: %w", err)
	}
	o.Logger = untrusted.Logger(o.Logger)
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider
	}
	if o.Registerer != nil && o.Namespace != "" {
		o.Registerer = prometheus.WrapRegistererWithPrefix(o.Namespace+"_", o.Registerer)
	}
	o.Namespace = ""
	return o, nil
}

var namespaces = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// Detail says how finely an Observer tells scopes, weeks and events apart. The zero value of each
// field has a stated default.
type Detail struct {
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

	// SpanPerEvent makes a span for each event of a batch, instead of one for the batch, and a span
	// for each event that a transaction judges, as a child of the transaction's span.
	SpanPerEvent bool
}

// The defaults of Detail.
const (
	DefaultMaxScopes  = 100
	DefaultMaxWeeks   = 12
	DefaultWeeksEvery = time.Minute
)

func (d Detail) withDefaults() (Detail, error) {
	if d.MaxScopes == 0 {
		d.MaxScopes = DefaultMaxScopes
	}
	if d.MaxWeeks == 0 {
		d.MaxWeeks = DefaultMaxWeeks
	}
	if d.WeeksEvery == 0 {
		d.WeeksEvery = DefaultWeeksEvery
	}
	switch {
	case d.MaxScopes < 0:
		return d, errors.New("hapax: telemetry: Detail.MaxScopes is negative")
	case d.WeeksEvery < 0:
		return d, errors.New("hapax: telemetry: Detail.WeeksEvery is negative")
	}
	return d, nil
}
