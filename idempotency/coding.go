package idempotency

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// codings returns the content codings of a response, in lower case, without identity.
func (r *response) codings() (codings []string) {
	for _, value := range r.header.Values("Content-Encoding") {
		for coding := range strings.SplitSeq(value, ",") {
			if coding = strings.ToLower(strings.TrimSpace(coding)); coding != "" && coding != "identity" {
				codings = append(codings, coding)
			}
		}
	}
	return codings
}

// sendAccepted sends a stored response to a client with these headers. The client may not accept
// the content coding that the first client accepted: then gzip is decoded.
func (r *response) sendAccepted(w http.ResponseWriter, client http.Header) {
	codings := r.codings()
	refused := false
	for _, coding := range codings {
		refused = refused || !accepts(client, coding)
	}
	switch {
	case !refused || len(r.body) == 0:
		r.send(w)
	case len(codings) == 1 && isGzip(codings[0]):
		r.sendDecoded(w)
	default:
		refuse(w, http.StatusNotAcceptable, problemCoding, "the stored response has the content coding "+strings.Join(codings, ", ")+": retry with an Accept-Encoding that accepts it")
	}
}

// sendDecoded sends the response without its coding gzip, or unchanged if the body is not gzip.
func (r *response) sendDecoded(w http.ResponseWriter) {
	body, err := gzip.NewReader(bytes.NewReader(r.body))
	if err != nil {
		r.send(w)
		return
	}
	setAll(w.Header(), r.header)
	for _, name := range []string{"Content-Encoding", "Content-Length", "Etag", "Digest", "Content-Digest"} { // headers of the encoded body
		w.Header().Del(name)
	}
	w.WriteHeader(r.status)
	if _, err := io.Copy(w, body); err != nil {
		panic(http.ErrAbortHandler) // the client must not take this for a whole response
	}
	setAll(w.Header(), r.trailer)
}

func isGzip(coding string) bool { return coding == "gzip" || coding == "x-gzip" }

// accepts reports whether a client with these headers accepts a content coding. Without
// Accept-Encoding a client accepts any coding (RFC 9110, section 12.5.3), but clients that cannot
// decode gzip usually do not send that header.
func accepts(client http.Header, coding string) bool {
	values := client.Values("Accept-Encoding")
	if len(values) == 0 {
		return !isGzip(coding)
	}
	accepted := false
	for _, value := range values {
		for item := range strings.SplitSeq(value, ",") {
			name, params, _ := strings.Cut(item, ";")
			name = strings.ToLower(strings.TrimSpace(name))
			switch {
			case name == coding || isGzip(name) && isGzip(coding):
				return weight(params) > 0
			case name == "*":
				accepted = weight(params) > 0
			}
		}
	}
	return accepted
}

// weight returns the quality value of an item, 1 without one.
func weight(params string) float64 {
	for param := range strings.SplitSeq(params, ";") {
		if name, value, ok := strings.Cut(param, "="); ok && strings.EqualFold(strings.TrimSpace(name), "q") {
			q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				return 0
			}
			return q
		}
	}
	return 1
}
