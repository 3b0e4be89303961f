package sidecar

// SyncDir does nothing: Windows gives no way to sync a directory, NTFS journals its entries.
func (OS) SyncDir(string) error { return nil }
