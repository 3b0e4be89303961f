package engine

// An Engine decides which caller may handle an event. It is safe for concurrent use. Open makes
// one.
//
// Internally, one goroutine, the committer, decides in order; a second one, the applier, hands one
// batch after the other to the store, while the next one is decided; a third one, the releaser,
// releases the answers in the same order, each when the batch on which it depends is durable. No
// verdict waits for a transaction (members of the lane wait for a turn before they begin, lane.go),
// and no lock is held during I/O or while a closure runs.
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
