package kafkaadapter

import (
	"context"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// RotateSecret replaces the secret of the store that authenticates dead letters. The secret before
// it remains valid until the next rotation: replay the letters that it sealed before then. Consumers
// that run use the new one at once. Rotate it if a backup or a copy of the store
// may have been read by others.
func RotateSecret(ctx context.Context, eng *engine.Engine) error {
	return eng.Update(ctx, func(tx *engine.Tx) error {
		secrets, err := bindSecrets(tx)
		if err != nil {
			return err
		}
		return own(tx).Put(secretKey(), secrets.Rotated().Bytes())
	}, engine.Retries(10))
}

// bindSecrets returns the store's secrets, and makes one for a store that has none.
func bindSecrets(tx *engine.Tx) (deadletter.Secrets, error) {
	b, found, err := tx.Get(secretKey())
	if err != nil {
		return deadletter.Secrets{}, err
	}
	if found {
		return deadletter.ParseSecrets(b)
	}
	secrets := deadletter.Secrets{}.Rotated()
	return secrets, own(tx).Put(secretKey(), secrets.Bytes())
}
