// Package storage defines the contract between the engine and a store: the [Store] interface, the
// batches that the engine applies, the keys of claims, and the errors that a store returns. It is
// for authors of stores; an application only opens a store, passes it to engine.Open, and may test
// for the errors of this package.
//
// Packages engine/pebble and engine/bolt are stores. To write your own store, use this package,
// package engine/storage/sidecar for the files next to its data, and package engine/storetest,
// which tests stores.
package storage
