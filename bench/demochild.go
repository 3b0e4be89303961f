package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A demoOrder is what a consumer of the demonstration is told. Its log is the bundled one; another source of records
// takes its place in demoConsumer.next.
type demoOrder struct {
	Store StoreName
	Dir   string
	Map   bool   // keep claims in a map instead of a store
	From  uint64 // with a map: the record to begin with
	Wait  uint64 // having told of this record, wait to be killed
}

const (
	demoTopic = "openstack_changes"
	demoChunk = 100 // records in a transaction

	demoRepeated = 3 * demoChunk // records that come again after a restart
)

var demoPosition = engine.Position{Group: "demo", Topic: demoTopic}

// demoChild consumes the log to its end. It says "told n cdc..." after the records from n on were handled.
func demoChild(order []byte, say *voice) error {
	var o demoOrder
	if err := json.Unmarshal(order, &o); err != nil {
		return err
	}
	events, err := readDemoLog()
	if err != nil {
		return err
	}
	if o.Map {
		return consumeWithMap(events, &o, say)
	}
	return consumeWithEngine(events, &o, say)
}

// tell says what became of the records from at on.
func (o *demoOrder) tell(say *voice, at int, results []engine.Result) {
	say.line("told %d %s", at, letters(results))
	if next := uint64(at + len(results)); next > o.Wait {
		select {} // until the killer comes
	}
}

func consumeWithEngine(events []engine.Event, o *demoOrder, say *voice) error {
	e, err := openEngine(o.Store, o.Dir, false, engine.Options{RetentionWeeks: engine.KeepAll})
	if err != nil {
		return err
	}
	offset, _, err := e.Offset(context.Background(), demoPosition)
	if err != nil {
		return err
	}
	// The store knows where to go on. Most brokers would send some of it again; so does this.
	at := int(offset.Next)
	at -= min(at, demoRepeated)
	for at < len(events) {
		chunk := events[at:min(at+demoChunk, len(events))]
		results, err := handle(e, chunk)
		if err != nil {
			return err
		}
		o.tell(say, at, results)
		at += len(chunk)
	}
	return e.Close()
}

// handle does the work for each record that is claimed, and commits work, claims and offset in one transaction.
func handle(e *opened, chunk []engine.Event) ([]engine.Result, error) {
	results := make([]engine.Result, len(chunk))
	err := e.Update(context.Background(), func(tx *engine.Tx) (err error) {
		for i := range chunk {
			if results[i], err = tx.TryClaim(chunk[i]); err != nil {
				return err
			}
			if results[i].Verdict != engine.Claimed {
				continue
			}
			if err := addDemoCount(tx, &chunk[i]); err != nil {
				return err
			}
		}
		last := chunk[len(chunk)-1].Origin.Offset
		offset, _, err := tx.Offset(demoPosition)
		if err != nil {
			return err
		}
		return tx.SetOffset(demoPosition, engine.Offset{Next: max(offset.Next, last+1)})
	})
	if err != nil {
		return nil, err
	}
	return results, told(results)
}

// consumeWithMap claims in a map, in portions as large as the transactions, and begins where the offset stands.
func consumeWithMap(events []engine.Event, o *demoOrder, say *voice) error {
	seen := make(map[string]bool)
	for at := int(o.From) - min(int(o.From), demoRepeated); at < len(events); at += demoChunk {
		chunk := events[at:min(at+demoChunk, len(events))]
		results := make([]engine.Result, len(chunk))
		for i := range chunk {
			results[i].Verdict = engine.Claimed
			if key := demoKey(&chunk[i]); seen[key] {
				results[i].Verdict = engine.Duplicate
			} else {
				seen[key] = true
			}
		}
		o.tell(say, at, results)
	}
	return nil
}

// demoKey tells events apart as the contract does: by id and week.
func demoKey(ev *engine.Event) string {
	week, err := weekbucket.Of(ev.Time)
	if err != nil {
		panic(fmt.Sprintf("bench: the bundled log has a record at %v", ev.Time)) // it does not change
	}
	return week.String() + string(ev.ID)
}

// The work of the demonstration: a count for each event, which is 1 if it was handled once.
func demoCountKey(ev *engine.Event) []byte { return []byte("handled " + demoKey(ev)) }

func addDemoCount(tx *engine.Tx, ev *engine.Event) error {
	count, err := readDemoCount(tx, ev)
	if err != nil {
		return err
	}
	return tx.Put(demoCountKey(ev), binary.AppendUvarint(nil, count+1))
}

func readDemoCount(tx *engine.Tx, ev *engine.Event) (uint64, error) {
	v, found, err := tx.Get(demoCountKey(ev))
	if err != nil || !found {
		return 0, err
	}
	count, _ := binary.Uvarint(v)
	return count, nil
}

func demoCount(ctx context.Context, e *opened, ev *engine.Event) (count uint64, err error) {
	err = e.Update(ctx, func(tx *engine.Tx) error {
		count, err = readDemoCount(tx, ev)
		return err
	})
	return count, err
}
