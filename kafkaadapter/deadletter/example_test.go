package deadletter_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A program that reads a dead-letter topic finds the reason and the original position of a record in
// the letter's headers.
func ExampleReasonOf() {
	record := &kgo.Record{Topic: "payments", Partition: 3, Offset: 4711, Value: []byte("five")}
	builder := deadletter.Builder{Group: "billing", Scope: "billing"} // package kafkaadapter has one for each route
	letter := builder.Letter(record, nil, deadletter.Failure{
		Reason: deadletter.Attempts, Err: errors.New("not a number"), Attempts: 5,
		Event: identify.Identity{ID: []byte("7"), Time: time.Now(), IDRule: identify.IDHeader, TimeRule: identify.TimeRecord},
	}, deadletter.Neutral)

	fmt.Printf("%s: %s\n", deadletter.ReasonOf(letter), letter.Value)
	for _, name := range []string{"error", "attempts", "event_id", "original_topic", "original_partition", "original_offset"} {
		fmt.Printf("%s: %s\n", name, identify.LastHeader(letter.Headers, deadletter.HeaderPrefix+name))
	}
	fmt.Printf("no dead letter: %q\n", deadletter.ReasonOf(record))
	// Output:
	// attempts: five
	// error: not a number
	// attempts: 5
	// event_id: 7
	// original_topic: payments
	// original_partition: 3
	// original_offset: 4711
	// no dead letter: ""
}

// Letters of all topics go to one dead-letter topic.
func ExampleOptions() {
	options := deadletter.Options{Topic: func(string) string { return "failed-records" }}
	fmt.Println(options.TopicOf("payments"), options.TopicOf("refunds"))

	var byDefault deadletter.Options
	fmt.Println(byDefault.TopicOf("payments"), byDefault.TopicOf("refunds"))
	// Output:
	// failed-records failed-records
	// payments-dlt refunds-dlt
}
