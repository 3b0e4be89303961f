package kafkaadapter

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/propagation"

	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

const traceparent = "traceparent"

// w3c is the default of Options.Telemetry.Propagator. It leaves baggage out: handlers pass it on to the
// services that they call, and any producer can write it.
var w3c propagation.TextMapPropagator = propagation.TraceContext{}

// traced returns ctx with the trace context that p finds in r's headers, so that spans started from
// it continue the producer's trace; nil is w3c. It needs no SDK, and allocates nothing for a record
// without such headers.
func traced(ctx context.Context, p propagation.TextMapPropagator, r *kgo.Record) context.Context {
	if !isTraced(p, r) {
		return ctx
	}
	if p == nil {
		p = w3c
	}
	return p.Extract(ctx, carrierOf(r))
}

// traced returns the context of the functions that get rec.
func (p *partition) traced(rec *kgo.Record) context.Context {
	return traced(p.ctx, p.c.opt.Telemetry.Propagator, rec)
}

// isTraced reports whether p, nil for w3c, may find a trace context in r's headers.
func isTraced(p propagation.TextMapPropagator, r *kgo.Record) bool {
	return p != nil || identify.LastHeader(r.Headers, traceparent) != nil
}

// A carrier gives propagators access to a record's headers.
type carrier []kgo.RecordHeader

var _ propagation.TextMapCarrier = (*carrier)(nil)

// carrierOf returns the headers of r themselves: Set changes the record.
func carrierOf(r *kgo.Record) *carrier { return (*carrier)(&r.Headers) }

// Get returns the value of the last header with that name and a value.
func (c *carrier) Get(name string) string { return string(identify.LastHeader(*c, name)) }

// Set replaces all headers with that name by one.
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
