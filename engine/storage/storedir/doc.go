// Package storedir ensures that a store's directory has one writer and remains the same directory.
//
// A path can change its meaning while a store is open: an operator renames the directory, removes
// the file LOCK, or unmounts the volume. A store that uses paths would then write into another
// store. So a Dir opens every file relative to a descriptor of the directory, and returns
// storage.ErrMoved when the name of the directory, or of a tracked file, no longer refers to it.
//
// Both stores use this package, and stores of other modules should use it too.
package storedir
