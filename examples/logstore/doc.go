// Package logstore is an example of a store for package engine that uses only exported packages. It
// keeps its contents in memory and in a log on disk, which Open reads. docs/writing-a-store.md
// explains it.
//
// It fulfils the contract of [storage.Store] and passes the tests of package storetest. It is
// simple, not fast: its contents must fit into memory, Open reads the whole log, and space is freed
// only by the next Open.
//
// In the source, store.go opens, applies and reads; log.go has the log file; contents.go has the
// contents in memory; files.go has the other files.
package logstore
