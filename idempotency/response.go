package idempotency

import (
	"encoding/binary"
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/hapax-dev/hapax/engine/limits"
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

var errResponse = errors.New("idempotency: the result of the key is not a response of this version of the package: use a scope of its own (Options.Scope)")

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
	d := decoder{rest: []byte(data)}
	form, dropped, status := d.uvarint(), d.uvarint(), d.uvarint()
	r := &response{status: int(status), dropped: dropped == 1, header: d.header(), trailer: d.header(), body: d.rest}
	if d.bad || form != responseForm || dropped > 1 || status < 200 || status > 999 {
		return nil, errResponse
	}
	return r, nil
}

// A decoder reads from rest; after the first failure it returns zero values.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if d.bad = d.bad || n <= 0; d.bad {
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) string() string {
	n := d.uvarint()
	if d.bad = d.bad || n > uint64(len(d.rest)); d.bad {
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

func (d *decoder) header() http.Header {
	h := http.Header{}
	for names := d.uvarint(); names > 0 && !d.bad; names-- {
		name := d.string()
		h[name] = nil // without a value, it keeps the server from adding its own
		for values := d.uvarint(); values > 0 && !d.bad; values-- {
			h[name] = append(h[name], d.string())
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

func setAll(dst, src http.Header) {
	for name, values := range src {
		dst[name] = append([]string(nil), values...)
	}
}
