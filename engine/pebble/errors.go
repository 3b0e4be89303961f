package pebble

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// asRead converts Pebble's error of a read to storage.ErrDamaged or a storage.DamageError, unless
// the file system itself failed.
func asRead(err error) error {
	switch {
	case err == nil, errors.Is(err, storage.ErrDamaged):
		return err
	}
	if d, _, ok := confined(err); ok {
		return &storage.DamageError{Parts: []storage.Damage{d}, Err: err}
	}
	switch {
	case pebble.IsCorruptionError(err), errors.Is(err, fs.ErrNotExist), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fmt.Errorf("%w: %w", storage.ErrDamaged, err)
	}
	return fmt.Errorf("hapax: reading the store: %w", err)
}

// asDamage is asRead for errors that only damage or the file system can cause.
func asDamage(d *failStopFS, doing string, err error) error {
	if d.unreadable.Load() || errors.Is(err, storage.ErrDamaged) {
		return fmt.Errorf("hapax: %s: %w", doing, err)
	}
	return fmt.Errorf("%w: %s: %w", storage.ErrDamaged, doing, err)
}
