package engine

// An Engine decides which caller may handle an event. It is safe for concurrent use. Open makes
// one, and Close ends it.
type Engine struct {
	// Each part refers to the parts that it needs, and to none that needs it. The exported methods
	// of embedded parts are methods of the Engine.
	core
	kept
	finder
	queue
	transactor
	retention
	admin

	decider   decider
	committer committer
	scanner   scanner
	snaps     snapshots
	holds     holds
}
