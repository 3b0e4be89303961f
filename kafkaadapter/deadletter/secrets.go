package deadletter

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"fmt"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/keyspace"
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

// RotateSecret replaces the secret of the store that authenticates dead letters. The secret before
// it remains valid until the next rotation: replay the letters that it sealed before then. Consumers
// that run use the new one at once. Rotate it if a backup or a copy of the store
// may have been read by others.
func RotateSecret(ctx context.Context, eng *engine.Engine) error {
	return eng.Update(ctx, func(tx *engine.Tx) error {
		secrets, err := BindSecrets(tx)
		if err != nil {
			return err
		}
		return putSecrets(tx, secrets.Rotated())
	}, engine.Retries(10))
}

// BindSecrets returns the store's secrets, and makes one for a store that has none.
func BindSecrets(tx *engine.Tx) (Secrets, error) {
	b, found, err := tx.Get(secretKey())
	switch {
	case err != nil:
		return Secrets{}, err
	case found:
		return ParseSecrets(b)
	}
	secrets := Secrets{}.Rotated()
	return secrets, putSecrets(tx, secrets)
}

// Present returns the secrets of the store as they are now: RotateSecret may have replaced s. If they
// cannot be read, it returns s.
func (s Secrets) Present(ctx context.Context, eng *engine.Engine) Secrets {
	if b, found, err := eng.Get(ctx, secretKey()); err == nil && found {
		if now, err := ParseSecrets(b); err == nil {
			return now
		}
	}
	return s
}

func putSecrets(tx *engine.Tx, s Secrets) error {
	return driver.TxIn(tx, keyspace.Kafka).Put(secretKey(), s.Bytes())
}

// secretKey is among the keys of the adapter, see kafkaadapter.KeyPrefix.
func secretKey() []byte { return []byte(keyspace.KafkaKeys + "k") }

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
