package idempotency

import (
	"net/http"
	"slices"
	"strings"
)

// credentials are the names of headers that carry credentials.
var credentials = []string{
	"Set-Cookie", "Set-Cookie2", "Cookie", "Authorization", "Authentication-Info", "Proxy-Authorization", "Proxy-Authentication-Info",
	"X-Auth-Token", "X-Access-Token", "X-Refresh-Token", "X-Session-Token", "X-Api-Key", "X-Csrf-Token", "X-Xsrf-Token",
	"X-Amz-Security-Token",
}

// withoutCredentials returns the headers that are stored: those that carry no credentials, and
// those that are named.
func withoutCredentials(h http.Header, named []string) http.Header {
	stored := http.Header{}
	for name, values := range h {
		plain := http.CanonicalHeaderKey(strings.TrimPrefix(name, http.TrailerPrefix))
		if !slices.Contains(credentials, plain) || slices.Contains(named, plain) {
			stored[name] = values
		}
	}
	return stored
}
