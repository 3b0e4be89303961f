package storedir

// Sync does nothing. Windows cannot sync a directory, and NTFS journals its entries.
func (d *Dir) Sync() error { return nil }
