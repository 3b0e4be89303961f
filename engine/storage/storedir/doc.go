// Package storedir holds the directory of a store: one writer, and always the same directory.
//
// A path can change its meaning while a store is open: an operator renames the directory, removes
// the file LOCK, or unmounts the volume. A store that works by path would then write into another
// store. So a Dir opens every file relative to a descriptor of the directory, and stops with
// storage.ErrMoved when the directory or one of the files that matter is no longer the one under its
// name.
//
// Both stores use this package; stores of other modules should, too.
package storedir
