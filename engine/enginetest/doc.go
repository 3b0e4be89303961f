// Package enginetest tests an engine on a store: that the engine keeps its promises on it, also after
// power cuts. [RunModel] compares the engine with maps over random sequences of all operations,
// [RunAdds] and [RunScopeDrops] have many callers at once.
//
// A store's own tests call these functions next to [storetest.Run], with the same
// [storetest.Harness]. The package is for tests only.
package enginetest
