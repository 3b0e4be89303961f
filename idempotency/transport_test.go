package idempotency_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/hapax-dev/hapax/idempotency"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// sentKeys returns a transport and the headers that it sends.
func sentKeys() (*idempotency.Transport, *[]string) {
	keys := new([]string)
	return &idempotency.Transport{Base: roundTrip(func(r *http.Request) (*http.Response, error) {
		*keys = append(*keys, strings.Join(r.Header.Values(idempotency.KeyHeader), " and "))
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	})}, keys
}

func send(t *testing.T, transport http.RoundTripper, r *http.Request) {
	t.Helper()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

func TestTransportKeys(t *testing.T) {
	transport, keys := sentKeys()
	plain := post("", "")
	send(t, transport, plain)
	send(t, transport, plain)
	ctx, err := idempotency.WithNewKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	made := post("", "").WithContext(ctx)
	send(t, transport, made)
	send(t, transport, made)
	send(t, transport, post("own", "").WithContext(ctx))
	send(t, transport, post("", "").WithContext(idempotency.WithKey(t.Context(), `a"b\c`)))
	get := post("", "").WithContext(ctx)
	get.Method = http.MethodGet
	send(t, transport, get)
	k := *keys
	for i := range 4 {
		id, err := uuid.Parse(strings.Trim(k[i], `"`))
		if err != nil || id.Version() != 7 || k[i] != `"`+id.String()+`"` {
			t.Errorf("key %d is %s", i, k[i])
		}
	}
	if k[0] == k[1] || k[2] != k[3] || k[2] == k[0] {
		t.Errorf("without a key in the context: %s, %s; with it: %s, %s", k[0], k[1], k[2], k[3])
	}
	if k[4] != "own" || k[5] != `"a\"b\\c"` || k[6] != "" {
		t.Errorf("%q", k[4:])
	}
	if plain.Header.Get(idempotency.KeyHeader) != "" || made.Header.Get(idempotency.KeyHeader) != "" {
		t.Error("the caller's request was changed")
	}
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

func TestTransportRejectsAKeyThatCannotBeSent(t *testing.T) {
	for _, key := range []string{"", "a\nb", strings.Repeat("k", idempotency.MaxKeyBytes+1)} {
		transport, keys := sentKeys()
		body := &closing{Reader: strings.NewReader("")}
		r := post("", "").WithContext(idempotency.WithKey(t.Context(), key))
		r.Body = body
		resp, err := transport.RoundTrip(r)
		if err == nil {
			resp.Body.Close()
		}
		if err == nil || !body.closed || len(*keys) > 0 {
			t.Errorf("%q: %v, body closed %v, sent %q", key, err, body.closed, *keys)
		}
	}
}

func TestTransportAndMiddlewareAgreeOnKeys(t *testing.T) {
	var all bytes.Buffer
	for c := byte(' '); c <= '~'; c++ {
		all.WriteByte(c)
	}
	handler, runs := counting()
	h := protect(t, inMemory(t), idempotency.Options{}, handler)
	transport := &idempotency.Transport{Base: roundTrip(func(r *http.Request) (*http.Response, error) { return do(h, r).Result(), nil })}
	for range 2 {
		send(t, transport, post("", "").WithContext(idempotency.WithKey(t.Context(), all.String())))
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}
