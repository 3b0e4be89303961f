package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter/identify"
	"github.com/hapax-dev/hapax/versions"
)

// A change is the envelope of a Debezium event.
type change struct {
	Op     string          `json:"op"` // c: insert, u: update, r: read by a snapshot, d: delete
	After  json.RawMessage `json:"after"`
	Source struct {
		DB     string  `json:"db"`
		Schema string  `json:"schema"`
		Table  string  `json:"table"`
		LSN    *uint64 `json:"lsn"`
		TxID   *uint64 `json:"txId"`
		TS     int64   `json:"ts_ms"`
		Nanos  int64   `json:"ts_ns"`
	} `json:"source"`
}

// A primaryKey is the key of a record.
type primaryKey struct {
	Tenant string          `json:"tenant_id"`
	ID     json.RawMessage `json:"id"`
}

// unwrap returns JSON without the schema that Kafka Connect may put around it.
func unwrap(data []byte) (json.RawMessage, error) {
	var wrapped struct {
		Payload json.RawMessage `json:"payload"`
	}
	if err := json.Unmarshal(data, &wrapped); err != nil {
		return nil, err
	}
	if len(wrapped.Payload) > 0 {
		return wrapped.Payload, nil
	}
	return data, nil
}

// decode returns the change in a record and the primary key as JSON. The change is nil for a
// tombstone, which follows a delete for Kafka's compaction.
func decode(rec *kgo.Record) (c *change, key json.RawMessage, err error) {
	if rec.Value == nil {
		return nil, nil, nil
	}
	value, err := unwrap(rec.Value)
	if err == nil {
		err = json.Unmarshal(value, &c) // null in older JSON converters: a tombstone too
	}
	if c == nil || err != nil {
		return nil, nil, err
	}
	key, err = unwrap(rec.Key)
	return c, key, err
}

// identifyChange returns an id of the parts that a connector repeats when it sends an event again
// after a failover: the key and the change in the log of Postgres. The time is part of the id,
// because a restored database may use positions of its log again, and because an incremental
// snapshot has no position: it reads a row once at a time. Other events without a position have the
// id of their record.
func identifyChange(rec *kgo.Record) (id []byte, at time.Time, err error) {
	c, key, err := decode(rec)
	if c == nil || err != nil {
		return nil, time.Time{}, err
	}
	s := &c.Source
	if s.TS <= 0 {
		return nil, time.Time{}, nil
	}
	at = time.UnixMilli(s.TS)
	if c.Op != "r" && (s.LSN == nil || s.TxID == nil) {
		return nil, at, nil
	}
	id, err = json.Marshal([]any{s.DB, s.Schema, s.Table, string(key), s.LSN, s.TxID, c.Op, s.TS, s.Nanos})
	return id, at, err
}

// row returns the row that a change puts.
func (c *change) row(rec *kgo.Record, key json.RawMessage) (r versions.Row, err error) {
	var names primaryKey
	if err := json.Unmarshal(key, &names); err != nil {
		return r, err
	}
	r = versions.Row{Tenant: names.Tenant, Key: names.ID, Version: uint64(position(rec)), Time: time.UnixMilli(c.Source.TS)}
	switch c.Op {
	case "c", "u", "r":
		r.Payload = c.After
		r.Partial, err = isPartial(c.After)
	case "d":
		r.Deleted = true
	default:
		err = errors.New("no rule for op " + c.Op)
	}
	return r, err
}

// position returns the offset of a record. For a dead letter that was sent back, which is older
// than the records around it, this is the original offset.
func position(rec *kgo.Record) int64 {
	header := func(name string) string { return string(identify.LastHeader(rec.Headers, name)) }
	original, err := strconv.ParseInt(header("hapax_dlt_original_offset"), 10, 64)
	if err != nil || original < 0 || original > rec.Offset ||
		header("hapax_dlt_original_topic") != rec.Topic || header("hapax_dlt_original_partition") != strconv.Itoa(int(rec.Partition)) {
		return rec.Offset
	}
	return original
}

// unavailable are the values that Debezium sends for unchanged large values (TOAST) of the types of
// Postgres: text and JSON, bytea, hstore, uuid[], and other arrays. The connector's option
// unavailable.value.placeholder changes them.
var unavailable = func() map[string]bool {
	const placeholder = "__debezium_unavailable_value"
	var numbers []int
	for _, b := range []byte(placeholder) {
		numbers = append(numbers, int(b))
	}
	hstore, _ := json.Marshal(map[string]string{placeholder: placeholder})
	values := map[string]bool{}
	for _, v := range []any{
		placeholder, []byte(placeholder), string(hstore), json.RawMessage(hstore),
		[]string{placeholder}, [][]byte{[]byte(placeholder)}, numbers, []string{"b68a35a7-17ad-35b3-af2a-ae46edb4545a"},
	} {
		b, _ := json.Marshal(v)
		values[string(b)] = true
	}
	return values
}()

func isUnavailable(value json.RawMessage) bool {
	const longest = 256 // the length of the values above, with spaces between
	var compact bytes.Buffer
	return len(value) <= longest && json.Compact(&compact, value) == nil && unavailable[compact.String()]
}

// isPartial reports whether a row lacks a value.
func isPartial(row []byte) (bool, error) {
	var columns map[string]json.RawMessage
	if err := json.Unmarshal(row, &columns); err != nil {
		return false, err
	}
	for _, value := range columns {
		if isUnavailable(value) {
			return true, nil
		}
	}
	return false, nil
}

// fill completes a row (versions.Options.Fill).
func fill(newer, older []byte) (filled []byte, partial bool) {
	var row, from map[string]json.RawMessage
	if json.Unmarshal(newer, &row) != nil || json.Unmarshal(older, &from) != nil {
		return newer, true
	}
	changed := false
	for column, value := range row {
		if !isUnavailable(value) {
			continue
		}
		value, ok := from[column]
		if !ok || isUnavailable(value) {
			partial = true
			continue
		}
		row[column], changed = value, true
	}
	if changed {
		newer, _ = json.Marshal(row) // of valid JSON
	}
	return newer, partial
}
