package deadletter

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// judge returns the engine's answer for r to a consumer of the group billing. If bury is set, a
// claimed record becomes a dead letter, which judge returns.
func judge(t *testing.T, eng *engine.Engine, o identify.Rules, r *kgo.Record, bury bool) (verdict engine.Verdict, reopened bool, dead *kgo.Record) {
	t.Helper()
	own, err := o.Identify(r, aTopicID)
	if err != nil && !errors.Is(err, identify.ErrNoID) {
		t.Fatal(err)
	}
	event := own
	from, _ := anIssuer.Replay(r, own)
	if from != nil {
		event = from.Sealed.Event
	} else if err != nil {
		t.Fatal(err)
	}
	ev := engine.Event{
		Scope: "invoices", ID: event.ID, Time: event.Time,
		Origin: engine.Origin{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset},
	}
	err = eng.Update(context.Background(), func(tx *engine.Tx) error {
		var res engine.Result
		var err error
		if from != nil {
			res, err = tx.TryReopen(ev, from.Sealed.Generation)
		} else {
			res, err = tx.TryClaim(ev)
		}
		verdict, reopened = res.Verdict, res.Record.Generation > 0
		if err != nil || !bury || verdict != engine.Claimed {
			return err
		}
		rec, err := tx.DeadLetter(ev)
		f := aFailure(event)
		f.Generation = rec.Generation
		dead = anIssuer.Letter(r, from, f, Neutral)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return verdict, reopened, dead
}

func openEngine(t *testing.T) *engine.Engine {
	t.Helper()
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{
		// the time at which letters are sent back
		RetentionWeeks: 10, Clock: func() time.Time { return aTime.Add(31 * 24 * time.Hour) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	return eng
}

func TestReplayIsHandledOnceForItsOriginalEvent(t *testing.T) {
	for name, r := range map[string]*kgo.Record{
		"header":      aRecord("message_id", "7"),
		"CloudEvents": aRecord("ce_id", "7", "ce_source", "/s"),
		"position":    aRecord(),
	} {
		t.Run(name, func(t *testing.T) {
			eng := openEngine(t)
			expect := func(what string, r *kgo.Record, bury bool, verdict engine.Verdict, reopened bool) *kgo.Record {
				t.Helper()
				v, re, dead := judge(t, eng, identify.Rules{}, r, bury)
				if v != verdict || v == engine.Claimed && re != reopened {
					t.Fatalf("%s: %v, reopened %v; want %v, %v", what, v, re, verdict, reopened)
				}
				return dead
			}
			first := expect("the record", r, true, engine.Claimed, false)
			expect("the record again", r, false, engine.Duplicate, false)
			second := expect("its replay, which fails too", sentBack(first), true, engine.Claimed, true)
			expect("the first letter again", sentBack(first), false, engine.Duplicate, false)
			expect("the second letter", sentBack(second), false, engine.Claimed, true)
			expect("the second letter again", sentBack(second), false, engine.Duplicate, false)
		})
	}
}

// An attacker who knows everything but the secret cannot take the place of a later record.
func TestForgedReplayTakesNoRecordsPlace(t *testing.T) {
	eng := openEngine(t)
	next := aRecord()
	next.Offset++
	forger := anIssuer
	forger.Secrets = Secrets{current: []byte("32 bytes that are not the secret")}
	forged := forger.Letter(next, nil, aFailure(identified(t, next)), Neutral)
	if v, _, _ := judge(t, eng, identify.Rules{}, sentBack(forged), false); v != engine.Claimed {
		t.Errorf("the record with the headers is %v", v)
	}
	if v, _, _ := judge(t, eng, identify.Rules{}, next, false); v != engine.Claimed {
		t.Errorf("the record whose position was forged is %v", v)
	}
}

// Stream processors copy headers to the records that they derive. These records are separate
// events.
func TestRecordsDerivedFromAReplayAreSeparateEvents(t *testing.T) {
	for name, r := range map[string]*kgo.Record{"header": aRecord("message_id", "7"), "position": aRecord()} {
		eng := openEngine(t)
		_, _, dead := judge(t, eng, identify.Rules{}, r, true)
		for i := range 3 {
			made := sentBack(dead)
			made.Topic, made.Offset = "lines", int64(i)
			if name == "header" {
				made.Headers = append(made.Headers, kgo.RecordHeader{Key: "message_id", Value: []byte{'7', '-', byte('0' + i)}})
			}
			if v, reopened, _ := judge(t, eng, identify.Rules{}, made, false); v != engine.Claimed || reopened {
				t.Errorf("%s: record %d is %v, reopened %v", name, i, v, reopened)
			}
		}
		if v, reopened, _ := judge(t, eng, identify.Rules{}, sentBack(dead), false); v != engine.Claimed || !reopened {
			t.Errorf("%s: the replay itself is %v, reopened %v", name, v, reopened)
		}
	}
}
