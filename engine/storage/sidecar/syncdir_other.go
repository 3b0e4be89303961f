//go:build !windows

package sidecar

import (
	"errors"
	"os"
)

// SyncDir makes the directory's entries durable.
func (OS) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
