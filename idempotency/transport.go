package idempotency

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
)

// A Transport is an [http.RoundTripper] that gives requests an idempotency key. If the request's
// header has a key, it is sent unchanged. Otherwise the key comes from the request's context
// ([WithKey], [WithNewKey]), or is a new UUIDv7. The caller's request is not changed.
//
// Retries below the transport, such as those of [http.Transport], have the same key. Retries above
// it, which pass a request to the transport again, have the same key if it is in the header or the
// context: call WithNewKey once, before [http.NewRequestWithContext], and retry with that request
// or with others of that context. Without it, each RoundTrip is a separate request.
//
// A Transport is safe for concurrent use.
type Transport struct {
	// Base sends the requests. nil = http.DefaultTransport.
	Base http.RoundTripper

	// Methods are those of requests that get a key. nil = POST and PATCH.
	Methods []string

	// Header is the name of the header. "" = KeyHeader.
	Header string
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	name := cmp.Or(t.Header, KeyHeader)
	if len(r.Header.Values(name)) > 0 || !t.needsKey(r.Method) {
		return base.RoundTrip(r)
	}
	ctx := r.Context()
	key, ok := ctx.Value(contextKey{}).(string)
	err := checkKey(key)
	if !ok {
		if ctx, err = WithNewKey(ctx); err == nil {
			key, _ = ctx.Value(contextKey{}).(string)
		}
	}
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper also closes it after an error
		}
		return nil, fmt.Errorf("hapax: idempotency: %w", err)
	}
	clone := r.Clone(r.Context())
	if clone.Header == nil {
		clone.Header = http.Header{}
	}
	clone.Header.Set(name, quote(key))
	return base.RoundTrip(clone)
}

func (t *Transport) needsKey(method string) bool {
	if t.Methods == nil {
		return method == http.MethodPost || method == http.MethodPatch
	}
	return slices.Contains(t.Methods, method)
}
