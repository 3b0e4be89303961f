package deadletter

import (
	"crypto/hmac"
	"crypto/rand"
	"fmt"
)

// MinSecretBytes is the minimum length of a secret.
const MinSecretBytes = 32

// Secrets authenticate dead letters. New letters are sealed with the current secret. A replay is
// accepted with a seal of the current or the previous secret, so that the secret can be replaced
// while letters wait for their replay. The zero value seals nothing and accepts nothing. Secrets
// are immutable.
type Secrets struct {
	current, previous []byte
}

// NewSecrets returns the secrets; previous is nil if there is no earlier one. A secret of fewer than
// MinSecretBytes is an error.
func NewSecrets(current, previous []byte) (Secrets, error) {
	for _, secret := range [][]byte{current, previous} {
		if n := len(secret); n < MinSecretBytes && (n > 0 || len(current) == 0) {
			return Secrets{}, fmt.Errorf("hapax: a secret for dead letters has %d bytes: use at least %d random ones", n, MinSecretBytes)
		}
	}
	return Secrets{current, previous}, nil
}

// Rotated returns the secrets with a new current one. The current one becomes the previous one, and
// letters that the previous one sealed are no longer accepted.
func (s Secrets) Rotated() Secrets {
	next := make([]byte, MinSecretBytes)
	_, _ = rand.Read(next) // it cannot fail
	return Secrets{next, s.current}
}

// Bytes returns the secrets as they are stored: the current one, and the previous one after it.
// Each has MinSecretBytes.
func (s Secrets) Bytes() []byte { return append(append([]byte(nil), s.current...), s.previous...) }

// ParseSecrets reads the result of Secrets.Bytes.
func ParseSecrets(b []byte) (Secrets, error) {
	switch len(b) {
	case MinSecretBytes:
		return NewSecrets(b, nil)
	case 2 * MinSecretBytes:
		return NewSecrets(b[:MinSecretBytes], b[MinSecretBytes:])
	}
	return Secrets{}, fmt.Errorf("hapax: the secrets for dead letters are stored as %d bytes in an unknown format: use the newer version that wrote them, or, if the application writes keys that begin with kafkaadapter.KeyPrefix, rename those keys", len(b))
}

func (s Secrets) seal(of *Sealed) []byte {
	if len(s.current) < MinSecretBytes {
		return nil
	}
	return of.seal(s.current)
}

func (s Secrets) accept(of *Sealed, seal []byte) bool {
	for _, secret := range [][]byte{s.current, s.previous} {
		if len(secret) >= MinSecretBytes && hmac.Equal(seal, of.seal(secret)) {
			return true
		}
	}
	return false
}
