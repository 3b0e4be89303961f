// Package storetest is the behaviour that every [storage.Store] must show.
//
// [Run] checks a store against each sentence of the contract in engine/storage/store.go that can be
// observed from outside; a store's own tests call it with a [Harness] that opens stores and, if it
// can, cuts their power. What a store states for itself (which damage is found when, what a Drop
// costs) is tested with that store.
//
// [Mem] is a store in memory, made of maps, for the tests of the engine: they decide when a batch
// becomes durable, which call fails, and what a power cut leaves.
//
// Package enginetest runs an engine on a store, with the same [Harness].
//
// All are are for tests only.
package storetest
