package storedir

// Sync does nothing: Windows gives no way to sync a directory, NTFS journals its entries.
func (d *Dir) Sync() error { return nil }
