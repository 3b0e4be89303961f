package sidecar

// SyncDir does nothing. Windows cannot sync a directory, and NTFS journals its entries.
func (OS) SyncDir(string) error { return nil }
