// Package enginetest tests that an engine keeps its promises on a store, also after power cuts.
// [RunModel] compares the engine with maps over random sequences of all operations. [RunAdds] and
// [RunScopeDrops] run many callers concurrently.
//
// A store's own tests call these functions next to [storetest.Run], with the same
// [storetest.Harness]. The package is for tests only.
package enginetest
