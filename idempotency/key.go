package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"
)

// Names of headers.
const (
	KeyHeader      = "Idempotency-Key"
	ReplayedHeader = "Idempotency-Replayed" // "true" in a response of an earlier request
)

var errNoKey = errors.New("the header with the idempotency key is missing: send a key that is the same for each retry")

// requestKey returns the key in the header with that name.
func requestKey(h http.Header, name string) (string, error) {
	values := h.Values(name)
	if len(values) == 0 {
		return "", fmt.Errorf("%w, in %s", errNoKey, name)
	}
	if len(values) > 1 {
		return "", fmt.Errorf("there is more than one header %s: send one", name)
	}
	return parseKey(strings.Trim(values[0], " \t"))
}

// parseKey reads a string of RFC 8941, section 3.3.3, or a bare token.
func parseKey(s string) (string, error) {
	key := s
	if quoted, ok := strings.CutPrefix(s, `"`); ok {
		if key, ok = unquote(quoted); !ok {
			return "", errors.New("the idempotency key is not a string of RFC 8941: put printable ASCII between quotes")
		}
	} else if strings.ContainsAny(s, "\",;\\ ") {
		return "", errors.New("the idempotency key is neither a string nor a token: put it between quotes")
	}
	return key, checkKey(key)
}

// unquote returns the content of a string whose opening quote was read; nothing may follow its
// closing quote.
func unquote(s string) (content string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), i == len(s)-1
		case '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", false
}

func checkKey(key string) error {
	if len(key) == 0 || len(key) > MaxKeyBytes {
		return fmt.Errorf("the idempotency key has %d bytes: send 1 to %d", len(key), MaxKeyBytes)
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
		return errors.New("the idempotency key has characters other than printable ASCII")
	}
	return nil
}

// isToken reports whether s can be the name of a header (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	const others = "!#$%&'*+-.^_`|~"
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(others, r)
	})
}

// quote returns the key as a string of RFC 8941.
func quote(key string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

type contextKey struct{}

// WithKey returns a context that gives its key to requests through a [Transport]. Different
// requests need different keys.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

// WithNewKey is WithKey with a new UUIDv7.
func WithNewKey(ctx context.Context) (context.Context, error) {
	key, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("hapax: idempotency: making a key: %w", err)
	}
	return WithKey(ctx, key.String()), nil
}
