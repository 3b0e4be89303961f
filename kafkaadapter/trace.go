package kafkaadapter

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/propagation"

	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

const (
	traceparent   = "traceparent"
	baggageHeader = "baggage"
)

// w3c is what Options.Telemetry.Propagator is if it is nil.
var w3c = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

// traced returns ctx with what p finds in r's headers, so that spans that begin in it continue the
// producer's trace; nil is w3c. It needs no SDK, and allocates nothing for a record that carries no
// such headers.
func traced(ctx context.Context, p propagation.TextMapPropagator, r *kgo.Record) context.Context {
	if p == nil {
		if identify.LastHeader(r.Headers, traceparent) == nil && identify.LastHeader(r.Headers, baggageHeader) == nil {
			return ctx
		}
		p = w3c
	}
	return p.Extract(ctx, carrierOf(r))
}

// A carrier is a record's headers as propagators read and write them.
type carrier []kgo.RecordHeader

var _ propagation.TextMapCarrier = (*carrier)(nil)

// carrierOf returns the headers of r themselves: Set changes the record.
func carrierOf(r *kgo.Record) *carrier { return (*carrier)(&r.Headers) }

// Get returns the value of the last header of that name that has one.
func (c *carrier) Get(name string) string { return string(identify.LastHeader(*c, name)) }

// Set replaces all headers of that name by one.
func (c *carrier) Set(name, value string) {
	kept := make(carrier, 0, len(*c)+1)
	for _, h := range *c {
		if h.Key != name {
			kept = append(kept, h)
		}
	}
	*c = append(kept, kgo.RecordHeader{Key: name, Value: []byte(value)})
}

// Keys returns the names of the headers.
func (c *carrier) Keys() []string {
	names := make([]string, len(*c))
	for i, h := range *c {
		names[i] = h.Key
	}
	return names
}
