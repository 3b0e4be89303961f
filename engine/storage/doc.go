// Package storage is the contract between the engine and a store: the [Store] interface, the
// batches that the engine applies, the keys of claims, and the errors that a store returns. It is
// for authors of stores; an application passes the store that it opened to engine.Open and needs
// the errors of this package at most.
//
// Packages engine/pebble and engine/bolt are stores. A store of your own needs this package,
// package engine/storage/sidecar for the files next to its data, and engine/storetest, the tests
// that every store passes.
package storage
