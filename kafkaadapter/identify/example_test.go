package identify_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A producer gives a record an id before the first attempt to send it. Later attempts keep it.
func ExampleEnsureID() {
	record := &kgo.Record{Topic: "payments", Value: []byte("15")}
	identify.EnsureID(record)
	id := string(identify.LastHeader(record.Headers, correlation.Header))
	identify.EnsureID(record) // a retry
	fmt.Println(len(id), string(identify.LastHeader(record.Headers, correlation.Header)) == id)

	named := &kgo.Record{Headers: []kgo.RecordHeader{{Key: "message_id", Value: []byte("7")}}}
	identify.EnsureID(named) // it has an id already
	fmt.Println(len(named.Headers))
	// Output:
	// 36 true
	// 1
}

// The zero Rules find the usual headers. A record without an id is identified by its position.
func ExampleRules_Identify() {
	var rules identify.Rules
	sent := time.Date(2025, 5, 7, 12, 0, 0, 0, time.UTC)
	for _, r := range []*kgo.Record{
		{Timestamp: sent, Headers: []kgo.RecordHeader{
			{Key: "message_id", Value: []byte("7")},
			{Key: "event_time", Value: []byte("2025-05-07T11:59:58Z")},
		}},
		{Timestamp: sent, Headers: []kgo.RecordHeader{
			{Key: "ce_id", Value: []byte("7")}, {Key: "ce_source", Value: []byte("/payments")},
			{Key: "ce_time", Value: []byte("2025-05-07T11:59:59Z")},
		}},
		{Timestamp: sent, Partition: 3, Offset: 4711},
	} {
		got, err := rules.Identify(r, [16]byte{1}) // the id of the topic, which a client gets from the broker
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(got.IDRule, got.TimeRule, got.Time.Format(time.TimeOnly))
	}
	// Output:
	// header header 11:59:58
	// cloudevents cloudevents 11:59:59
	// position record 12:00:00
}

// The id and the time of an event are in the payload.
func ExampleRules_payload() {
	rules := identify.Rules{
		Payload: func(r *kgo.Record) (id []byte, at time.Time, err error) {
			var order struct {
				Number   string
				Received time.Time
			}
			err = json.Unmarshal(r.Value, &order)
			return []byte(order.Number), order.Received, err
		},
		NoPosition: true, // a record without an id is an error
	}
	if err := rules.Validate(); err != nil {
		log.Fatal(err)
	}
	for _, value := range []string{`{"number": "A-17", "received": "2025-05-07T12:00:00Z"}`, `{}`, `broken`} {
		got, err := rules.Identify(&kgo.Record{Value: []byte(value)}, [16]byte{1})
		switch {
		case errors.Is(err, identify.ErrNoID):
			fmt.Println("no id")
		case errors.Is(err, identify.ErrBadPayload):
			fmt.Println("not an order")
		default:
			fmt.Printf("%s of %s, %v\n", got.ID, got.Time.Format(time.DateOnly), err)
		}
	}
	// Output:
	// A-17 of 2025-05-07, <nil>
	// no id
	// not an order
}
