package deadletter

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A letter without its value may be sent to a consumer that does not accept it as a replay, such as that
// of another group. It is an incomplete record there too, and so is every letter about it: none may
// be handled with an empty value.
func TestLetterOfARefusedIncompleteLetterIsIncomplete(t *testing.T) {
	r := aRecord("message_id", "7")
	own := identified(t, r)
	short := shorten(anIssuer.Letter(r, nil, aFailure(own), Neutral), 0)
	other := anIssuer
	other.Group = "another"
	for _, what := range []string{"first", "second", "third"} {
		again := sentBack(short)
		from, _ := other.Replay(again, own)
		cause := Incomplete(again)
		if !errors.Is(cause, ErrIncomplete) {
			t.Fatalf("the %s replay counts as whole, with the value %q", what, again.Value)
		}
		again.Topic, again.Offset = "elsewhere", again.Offset+1
		short = other.Letter(again, from, Failure{Reason: Undecodable, Err: cause, Event: own}, Neutral)
		if what == "second" {
			short = shorten(short, 0)
		}
		if at, want := string(identify.LastHeader(short.Headers, "hapax_dlt_omitted_from")), fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset); at != want {
			t.Errorf("after the %s replay, the value is said to be at %q, want %q", what, at, want)
		}
	}
}
