package idempotency

import (
	"encoding/binary"
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/internal/decode"
)

// A response is the part of an answer that is stored with a key:
//
//	+------+---------+----------------+--------+---------+------+
//	| form | dropped | status uvarint | header | trailer | body |
//	+------+---------+----------------+--------+---------+------+
//
// The form is 1. Header and trailer are the number of names, and for each of them in order the
// name, the number of its values, and the values; a name or a value is its length and its bytes.
// Numbers and lengths are uvarints.
type response struct {
	status  int
	dropped bool // the response was too large: only its status is stored
	header  http.Header
	trailer http.Header
	body    []byte
}

const responseForm = 1

var errResponse = errors.New("hapax: idempotency: the result of the key is not a response of this version of the package: use a separate scope (Options.Scope)")

// encode returns the encoded response, without headers and body if they are too large.
func (r *response) encode() []byte {
	b := []byte{responseForm, 0}
	if r.dropped {
		b[1] = 1
	}
	b = binary.AppendUvarint(b, uint64(r.status))
	b = appendHeader(b, r.header)
	b = appendHeader(b, r.trailer)
	b = append(b, r.body...)
	if len(b) > limits.DataBytes {
		return (&response{status: r.status, dropped: true}).encode()
	}
	return b
}

// encodeFor is encode without headers that carry credentials, except those that are named.
func (r *response) encodeFor(named []string) []byte {
	stored := *r
	stored.header, stored.trailer = withoutCredentials(r.header, named), withoutCredentials(r.trailer, named)
	return stored.encode()
}

func appendHeader(b []byte, h http.Header) []byte {
	b = binary.AppendUvarint(b, uint64(len(h)))
	for _, name := range slices.Sorted(maps.Keys(h)) {
		b = appendBytes(b, name)
		b = binary.AppendUvarint(b, uint64(len(h[name])))
		for _, value := range h[name] {
			b = appendBytes(b, value)
		}
	}
	return b
}

// appendBytes appends the length of s and s.
func appendBytes(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

func decodeResponse(data string) (*response, error) {
	d := decode.Decoder{Rest: []byte(data)}
	form, dropped, status := d.Uvarint(), d.Uvarint(), d.Uvarint()
	r := &response{status: int(status), dropped: dropped == 1, header: readHeader(&d), trailer: readHeader(&d), body: d.Rest}
	if d.Bad || form != responseForm || dropped > 1 || status < 200 || status > 999 {
		return nil, errResponse
	}
	return r, nil
}

func readHeader(d *decode.Decoder) http.Header {
	h := http.Header{}
	for names := d.Uvarint(); names > 0 && !d.Bad; names-- {
		name := string(d.Bytes())
		h[name] = nil // without a value, it keeps the server from adding its own
		for values := d.Uvarint(); values > 0 && !d.Bad; values-- {
			h[name] = append(h[name], string(d.Bytes()))
		}
	}
	return h
}

// send writes status, headers, body and trailers.
func (r *response) send(w http.ResponseWriter) {
	setAll(w.Header(), r.header)
	w.WriteHeader(r.status)
	if len(r.body) > 0 {
		_, _ = w.Write(r.body) // an error means that the client has disconnected; it can retry
	}
	setAll(w.Header(), r.trailer)
}

// setAll sets the headers of src in dst. Those to which handlers add values, such as cookies, keep the
// values of an outer middleware.
func setAll(dst, src http.Header) {
	for name, values := range src {
		var before []string
		if name == "Set-Cookie" || name == "Vary" {
			before = dst[name]
		}
		dst[name] = append(slices.Clone(before), values...)
	}
}
