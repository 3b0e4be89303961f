package storage

// Copies keeps the local copy of one log (package replica): there is one, or none. Its methods are called
// one at a time.
type Copies interface {
	// Open opens the copy, or returns fs.ErrNotExist if there is none. After a crash the copy may have
	// lost its newest batches, but no batch before one that it has.
	Open() (Store, error)
	// Create makes an empty copy with the given identity, where there is none.
	Create(id Identity) (Store, error)
	// Remove removes the copy, which is closed or cannot be opened.
	Remove() error
}
