package idempotency

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"slices"
	"strings"
)

// fingerprint returns the keyed hash of the parts that must be the same in all requests with a key.
// body is the result of Options.Fingerprint.
func fingerprint(r *http.Request, secret, body []byte) string {
	asked, err := url.ParseRequestURI(r.RequestURI)
	if err != nil { // a request that no client has sent need not have a RequestURI
		asked = r.URL
	}
	mac := hmac.New(sha256.New, secret)
	// An outer handler may have changed the URL, as http.StripPrefix does, or parsed the body as a
	// form.
	for _, part := range [...]string{
		r.Method, hostname(r.Host), cleaned(r.URL), r.URL.RawQuery, cleaned(asked), asked.RawQuery, r.PostForm.Encode(),
	} {
		hashText(mac, part)
	}
	mac.Write(body)
	return string(mac.Sum(nil))
}

// hostname returns the host without its port, because the port of a server may change when it is
// started again.
func hostname(host string) string {
	return strings.ToLower((&url.URL{Host: host}).Hostname())
}

// cleaned returns the path without a slash at its end, doubled slashes and dots, because
// http.ServeMux redirects from one form to the other, and the client sends its key to both.
func cleaned(u *url.URL) string { return path.Clean(u.EscapedPath()) }

// bodyFingerprint returns a hash of the body. For a multipart body it is a hash of the parts
// without their boundary, because a client that makes the form again chooses another boundary.
func bodyFingerprint(r *http.Request, body []byte) []byte {
	h := sha256.New()
	if kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err == nil && strings.HasPrefix(kind, "multipart/") {
		hashText(h, kind)
		if hashParts(h, multipart.NewReader(bytes.NewReader(body), params["boundary"])) == nil {
			return h.Sum(nil)
		}
		h.Reset()
	}
	hashText(h, "")
	h.Write(body)
	return h.Sum(nil)
}

// hashParts hashes the headers and contents of all parts.
func hashParts(h hash.Hash, parts *multipart.Reader) error {
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		hashHeader(h, part.Header)
		content, err := io.ReadAll(part)
		if err != nil {
			return err
		}
		hashText(h, string(content))
	}
}

func hashHeader(h hash.Hash, header textproto.MIMEHeader) {
	hashNumber(h, len(header))
	for _, name := range slices.Sorted(maps.Keys(header)) {
		hashText(h, name)
		hashNumber(h, len(header[name]))
		for _, value := range header[name] {
			hashText(h, value)
		}
	}
}

// hashText hashes the length of s and s.
func hashText(h hash.Hash, s string) {
	hashNumber(h, len(s))
	_, _ = io.WriteString(h, s)
}

func hashNumber(h hash.Hash, n int) { h.Write(binary.AppendUvarint(nil, uint64(n))) }
