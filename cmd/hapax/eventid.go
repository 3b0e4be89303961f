package main

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// An eventID is the event of a command line.
type eventID struct {
	ID       string `arg:"" optional:"" help:"Id of the event, as its producer gave it."`
	Base64   bool   `help:"ID is in base64, as in the JSON of the commands: for ids that are no text." name:"base64"`
	Source   string `help:"Source of a CloudEvents event."`
	Position string `help:"Position of a record without an id, with the id of its topic." placeholder:"TOPICID/PARTITION@OFFSET"`
	PerTopic string `help:"Topic of the record, for a consumer whose ids have it (Rules.PerTopic)." placeholder:"TOPIC"`
	Scope    string `help:"Scope of the event." required:""`
}

// bytes returns the id of the claim.
func (e *eventID) bytes() (id []byte, err error) {
	switch {
	case (e.ID == "") == (e.Position == ""):
		return nil, usageError("give the ID of the event, or the --position of a record without one")
	case e.Base64 && e.Source != "":
		return nil, usageError("--base64 is the whole id, with its source")
	case e.Position != "" && e.PerTopic != "":
		return nil, usageError("--position has the id of the topic: leave --per-topic out")
	case e.Position != "":
		id, err = positionID(e.Position)
	case e.Base64:
		id, err = base64.StdEncoding.DecodeString(e.ID)
	case e.Source != "":
		id = identify.CloudEventID([]byte(e.Source), []byte(e.ID))
	default:
		id = identify.PlainID([]byte(e.ID))
	}
	if err != nil {
		return nil, usageError("the id is malformed: " + err.Error())
	}
	if e.PerTopic != "" {
		id = identify.WithTopic(e.PerTopic, id)
	}
	return id, nil
}

// positionID parses a position, whose topic id is in hexadecimal digits, or in base64 as Kafka's tools
// print it.
func positionID(text string) ([]byte, error) {
	topic, rest, _ := strings.Cut(text, "/")
	partition, offset, _ := strings.Cut(rest, "@")
	raw, err := hex.DecodeString(strings.ReplaceAll(topic, "-", ""))
	if err != nil {
		raw, err = base64.RawURLEncoding.DecodeString(topic)
	}
	if err != nil || len(raw) != 16 {
		return nil, fmt.Errorf("%q has no topic id of 16 bytes", text)
	}
	p, err := strconv.ParseInt(partition, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("partition: %w", err)
	}
	o, err := strconv.ParseInt(offset, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("offset: %w", err)
	}
	return identify.PositionID([16]byte(raw), int32(p), o), nil
}
