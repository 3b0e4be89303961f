package engine

// An Engine decides who may handle an event. It is safe for use by any number of goroutines. Open
// makes one.
//
// Inside, one goroutine, the committer, decides in order; a second one, the applier, hands one
// batch after the other to the store, while the next one is decided; a third one, the releaser,
// lets the answers go in the same order, each once the batch it rests on is durable. No verdict
// waits for a transaction (members of the lane wait for a turn before they begin, lane.go), and no
// lock is held during I/O or while a closure runs.
type Engine struct {
	// Each part refers to those that it needs, and to none that needs it. Methods of embedded parts
	// that are exported are methods of the Engine.
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
