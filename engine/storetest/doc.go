// Package storetest tests the behaviour that every [storage.Store] must have.
//
// [Run] checks a store against each sentence of the contract in engine/storage/store.go that can be
// observed from outside. A store's own tests call it with a [Harness] that opens stores and, if
// possible, cuts their power. Additional guarantees of a store, such as its detection of damage or
// the cost of Drop, are tested in the store's package.
//
// [Mem] is a store in memory for tests of the engine. A test decides when a batch becomes durable,
// which calls fail, and which data a power cut leaves.
//
// Package enginetest runs an engine on a store, with the same [Harness].
//
// Use these packages only in tests.
package storetest
