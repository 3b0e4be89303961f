// Package logstore is an example of a store for package engine, written with exported packages
// only: all that it holds is in memory, and in a log on disk, which is read when the store is
// opened. docs/writing-a-store.md explains it.
//
// It keeps the whole contract of [storage.Store] and passes the tests of package storetest. It is
// simple, not fast: what it holds must fit into memory, an open reads the whole log, and space comes
// back only when the store is opened again.
//
// Reading the source: store.go opens, applies and reads; log.go is the file; contents.go is what an
// open makes of it; files.go is all that is beside the log.
package logstore
