package kafkaadapter

import "time"

// A state is a stage in the life of an assigned partition. Each assignment has one goroutine, which
// is in one state at a time; nothing else changes the state.
type state uint8

const (
	lookingUp   state = iota // asks the brokers for the topic's id, the log's bounds and the end of the last epoch
	takingOver               // compares these with the store and the group's commit, and becomes the owner in the store
	signing                  // commits the offset to Kafka with the store's identity
	failingOpen              // the store is unavailable: begins at Kafka's offset, and commits it with a mark
	publishing               // publishes dead letters that the store has and the broker has not acknowledged
	running                  // handles records
	unprotected              // the store is unavailable: handles records without claims
	paused                   // waits until the application resumes it
	stopped                  // does not read the partition, for a stated reason, until the next try
	ended                    // the assignment is over
	stateCount
)

var stateNames = [stateCount]string{"lookingUp", "takingOver", "signing", "failingOpen", "publishing", "running", "unprotected", "paused", "stopped", "ended"}

func (s state) String() string { return stateNames[s] }

// A status is the state of a partition as its users see it.
type status struct {
	state state
	// why the partition is not read, or was not read before the current try; nil while it is read
	stop     *StopError
	nextTry  time.Time   // when a stopped partition is retried; zero if that needs a new assignment
	adopting *adoption   // submitted, and not ended
	adopted  []*adoption // those that have met a further disagreement, which stops the partition
}
