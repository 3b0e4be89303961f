//go:build !windows

package storedir

// Sync makes the entries of the directory durable.
func (d *Dir) Sync() error { return d.self.Sync() }
