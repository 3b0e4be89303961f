package deadletter

// A Refusal is the reason for which the headers of a dead letter do not make a record its replay, in
// snake case as in metrics. The empty string means that there is no reason to report: the record has
// no such headers, they are of another group or scope, or they name no event.
type Refusal string

// The reasons.
const (
	RefusedHeaders Refusal = "headers" // a header is missing or cannot be read
	RefusedSeal    Refusal = "seal"    // a header was changed or forged, or the secret was replaced twice
	RefusedStore   Refusal = "store"   // another store, or the store of which this is a restored copy, issued the letter
	RefusedTopic   Refusal = "topic"   // the record is neither on the letter's topic nor on a retry topic
	RefusedEvent   Refusal = "event"   // the record has the id of another event
)

// Refusals lists all reasons, for labels and counters.
var Refusals = [...]Refusal{RefusedHeaders, RefusedSeal, RefusedStore, RefusedTopic, RefusedEvent}

// Error says what to do.
func (r Refusal) Error() string {
	switch r {
	case RefusedHeaders:
		return "hapax: not the replay of a dead letter: a header is missing or cannot be read: send the letter with all its headers, unchanged"
	case RefusedSeal:
		return "hapax: not the replay of a dead letter: the seal does not fit the headers: send the letter with all its headers, unchanged"
	case RefusedStore:
		return "hapax: not the replay of a dead letter: another store issued the letter: send it to that store's consumer, or, if this store was restored from a backup of it, set deadletter.Options.RestoredStore"
	case RefusedTopic:
		return "hapax: not the replay of a dead letter: the record is on another topic: send the letter to the topic of its header " + dltTopic + ", or list this one in deadletter.Options.RetryTopics"
	case RefusedEvent:
		return "hapax: not the replay of a dead letter: the record has another event's id: remove the headers that begin with " + HeaderPrefix + " from records that are derived from it"
	}
	return "hapax: not the replay of a dead letter"
}
