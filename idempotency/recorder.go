package idempotency

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// ErrAnswered is an error of Update. The handler has already begun its response, or an earlier
// Update has written it. A handler must write its response either in Update or outside it.
var ErrAnswered = errors.New("hapax: idempotency: the request already has a response: write it once, in Update")

// A recorder is the handler's ResponseWriter: it holds the response back. A body above the limit is
// sent once overflow has returned nil.
type recorder struct {
	w        http.ResponseWriter
	limit    int
	overflow func() error    // called before the first byte of a response that is not held back
	ctx      context.Context // of the request

	header http.Header // the handler's
	kept   response    // with the headers at the time of WriteHeader
	length int64       // length of the body in its headers; -1 if they do not contain it
	late   bool        // ctx had ended when the response was begun
	direct bool        // the response is no longer held back
	err    error       // the error of overflow: nothing may be sent

	begun    atomic.Bool // kept has a status
	answered atomic.Bool // Update has written the response
}

func (rec *recorder) Header() http.Header { return rec.header }

func (rec *recorder) WriteHeader(status int) {
	if rec.kept.status != 0 || status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	if status < 200 || status > 999 {
		panic("hapax: idempotency: the handler gave a status that cannot be stored: give 200 to 999")
	}
	rec.kept.status, rec.kept.header, rec.length = status, rec.header.Clone(), -1
	if n, err := strconv.ParseInt(rec.kept.header.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		rec.length = n
	}
	rec.late = rec.ctx != nil && rec.ctx.Err() != nil
	rec.begun.Store(true)
}

func (rec *recorder) Write(p []byte) (int, error) {
	rec.WriteHeader(http.StatusOK)
	if !rec.bodyAllowed() {
		return 0, http.ErrBodyNotAllowed
	}
	switch {
	case rec.answered.Load():
		return 0, ErrAnswered
	case rec.err != nil:
		return 0, rec.err
	case rec.direct:
		return rec.w.Write(p)
	case rec.length >= 0 && int64(len(rec.kept.body)+len(p)) > rec.length:
		return 0, http.ErrContentLength // as net/http does
	case len(rec.kept.body)+len(p) <= rec.limit:
		rec.kept.body = append(rec.kept.body, p...)
		return len(p), nil
	}
	if rec.err = rec.overflow(); rec.err != nil {
		return 0, rec.err
	}
	rec.direct = true
	rec.kept.send(rec.w)
	rec.kept.body = nil
	return rec.w.Write(p)
}

func (rec *recorder) bodyAllowed() bool {
	return rec.kept.status != http.StatusNoContent && rec.kept.status != http.StatusNotModified
}

// isShort reports whether the body of the complete response to a request with that method is
// shorter than its headers say. No client would accept it.
func (rec *recorder) isShort(method string) bool {
	return !rec.direct && rec.bodyAllowed() && method != http.MethodHead && int64(len(rec.kept.body)) < rec.length
}

// end completes the response after the handler has returned.
func (rec *recorder) end() *response {
	rec.WriteHeader(http.StatusOK)
	rec.kept.trailer = rec.trailer()
	if rec.direct {
		setAll(rec.w.Header(), rec.kept.trailer)
	}
	return &rec.kept
}

// trailer returns the headers that were announced as trailers, or have http.TrailerPrefix.
func (rec *recorder) trailer() http.Header {
	trailer := http.Header{}
	for _, names := range rec.kept.header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if values, ok := rec.header[name]; ok {
				trailer[name] = slices.Clone(values)
			}
		}
	}
	for name, values := range rec.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			trailer[name] = slices.Clone(values)
		}
	}
	return trailer
}
