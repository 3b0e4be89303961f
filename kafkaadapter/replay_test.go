package kafkaadapter

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// inDir is a store in a directory.
func inDir(t testing.TB, dir string) storage.Store {
	t.Helper()
	s, err := pebble.Open(dir, pebble.Options{CacheBytes: 1 << 20, MemTableBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asText returns a dead letter as it leaves a tool that keeps headers as text: what is not UTF-8 is
// replaced, and a zero byte ends the value.
func asText(dead *kgo.Record) *kgo.Record {
	text := &kgo.Record{Key: dead.Key, Value: dead.Value}
	for _, h := range dead.Headers {
		value, _, _ := bytes.Cut(h.Value, []byte{0})
		text.Headers = append(text.Headers, kgo.RecordHeader{Key: h.Key, Value: []byte(strings.ToValidUTF8(string(value), "\uFFFD"))})
	}
	return text
}

func TestLetterThatPassedATextToolIsHandledOnce(t *testing.T) {
	for name, headers := range map[string][]kgo.RecordHeader{
		"position":                   nil,
		"CloudEvent":                 {{Key: "ce_source", Value: []byte("/s")}, {Key: "ce_id", Value: []byte("7")}},
		"a binary id":                {{Key: "message_id", Value: []byte("\x01\xff\xfe7\xfd")}},
		"an id with a zero":          {{Key: "message_id", Value: []byte("7\x008")}},
		"an id that begins with one": {{Key: "message_id", Value: []byte("\x007")}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			poison := r.event(0, "poison")
			poison.Headers = headers
			r.Produce(t, poison)
			broken := true
			m := r.start(t, r.work(1, func(context.Context, *engine.Tx, *Record) error {
				if broken {
					return errHandler
				}
				return nil
			}))
			dead := r.letters(t, 1)[0]
			r.untilStored(t, 0, 1)
			m.stop(t)
			broken = false
			m = r.start(t, r.work(1, nil))
			r.replay(t, asText(dead), 2)
			r.untilStored(t, 0, 3)
			m.stop(t)
			if all := r.handled(); len(all) != 2 || !all[1].reopened || all[1].id != all[0].id || r.effects(t, all[0].id) != 1 {
				t.Errorf("handled %+v", all)
			}
		})
	}
}

// The record is judged by its own id, which is claimed: only the warning and the counter tell that
// an event was not handled.
func TestLetterWithABrokenSealIsReported(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "poison")
	m := r.start(t, r.work(1, failing(errHandler, "poison")))
	dead := r.letters(t, 1)[0]
	r.untilStored(t, 0, 1)
	carrierOf(dead).Set("hapax_dlt_seal", strings.Repeat("00", 16))
	r.replay(t, dead, 1)
	r.untilStored(t, 0, 2)
	m.counts(t, 1, "refused_replays_total", r.topic, "seal")
	m.stop(t)
	if n := m.logs.count("level=WARN msg=\"the headers of a dead letter are not accepted"); n != 1 {
		t.Errorf("%d warnings", n)
	}
}

// Of a route with two topics, a record of the second topic with the headers of a letter of the
// first is another event.
func TestLetterIsAcceptedOnItsOwnTopicOnly(t *testing.T) {
	for name, retry := range map[string]bool{"another topic": false, "a retry topic": true, "a retry topic, and ids of each topic": true} {
		t.Run(name, func(t *testing.T) {
			perTopic := strings.Contains(name, "each topic")
			r := newRig(t, 1)
			other := r.topic + "-other"
			r.CreateNamed(t, other, 1, nil)
			r.CreateNamed(t, other+"-dlt", 1, nil)
			r.send(t, 0, "poison")
			start := func(f func(context.Context, *engine.Tx, *Record) error) *member {
				return r.start(t, r.work(1, f), func(o *Options) {
					o.Routes[0].Topics = append(o.Routes[0].Topics, other)
					o.Routes[0].Identify.PerTopic = perTopic
					if retry {
						o.Routes[0].DeadLetters.RetryTopics = []string{other}
					}
				})
			}
			broken := true
			m := start(func(context.Context, *engine.Tx, *Record) error {
				if broken {
					return errHandler
				}
				return nil
			})
			dead := r.letters(t, 1)[0]
			r.untilStored(t, 0, 1)
			m.stop(t)
			broken = false
			m = start(nil)
			r.Produce(t, &kgo.Record{Topic: other, Key: dead.Key, Value: []byte("a stranger's"), Headers: dead.Headers})
			r.UntilCommitted(t, r.group, other, 0, 1)
			if retry {
				m.counts(t, 1, "reopened_total")
			} else {
				m.counts(t, 1, "refused_replays_total", other, "topic")
				r.replay(t, dead, 1)
				m.counts(t, 1, "reopened_total")
			}
			m.stop(t)
			r.checkOnce(t, r.handledIDs()[0])
		})
	}
}

// A letter whose event was never claimed has nothing to reopen: it is sent back with the right time.
func TestLetterThatWasNeverClaimedIsIdentifiedAnew(t *testing.T) {
	for _, wrong := range []time.Time{time.Now().AddDate(-1, 0, 0), time.Now().AddDate(0, 0, 10)} {
		for _, id := range []string{"late", ""} {
			r := newRig(t, 1)
			rec := r.dated(id, wrong)
			r.Produce(t, rec)
			m := r.start(t, r.work(1, nil))
			dead := r.letters(t, 1)[0]
			carrierOf(dead).Set("event_time", time.Now().UTC().Format(time.RFC3339Nano))
			r.replay(t, dead, 2)
			r.untilStored(t, 0, 3)
			m.stop(t)
			if all := r.handled(); len(all) != 1 || all[0].verdict != engine.Claimed || r.letterCount(t) != 1 {
				t.Errorf("%q at %v: handled %+v, %d letters", id, wrong, all, r.letterCount(t))
			}
		}
	}
}

// A record whose value was left out would be handled without it, if nothing of it was claimed.
func TestUnsealedLetterWithoutItsValueIsNotHandled(t *testing.T) {
	r := newRig(t, 1)
	r.Produce(t, &kgo.Record{Topic: r.topic, Headers: []kgo.RecordHeader{
		{Key: "message_id", Value: []byte("a")}, {Key: "hapax_dlt_omitted", Value: []byte("value")}, {Key: "hapax_dlt_omitted_bytes", Value: []byte("9")},
	}})
	m := r.start(t, r.work(1, nil))
	dead := r.letters(t, 1)[0]
	r.untilStored(t, 0, 1)
	m.stop(t)
	if got := values(dead); got["hapax_dlt_reason"] != "undecodable" || len(r.handled()) > 0 {
		t.Errorf("letter %v, handled %+v", got, r.handled())
	}
}

// Rules.Payload reads the id, and the letter lacks the payload: its claim can still be reopened when
// the payload is back.
func TestLetterWithoutThePayloadOfItsIDKeepsItsSeal(t *testing.T) {
	r := newRig(t, 1)
	r.setLimit(t, 100_000)
	value := noise(200_000)
	poison := r.large("poison", value)
	poison.Headers = nil
	r.sendLarge(t, poison)
	failures := 1
	m := r.start(t, r.work(1, func(context.Context, *engine.Tx, *Record) error {
		if failures--; failures >= 0 {
			return Permanent(errHandler)
		}
		return nil
	}), func(o *Options) {
		o.Routes[0].Identify.Payload = func(rec *kgo.Record) ([]byte, time.Time, error) {
			if len(rec.Value) == 0 {
				return nil, time.Time{}, errHandler
			}
			return []byte("poison"), time.Time{}, nil
		}
	})
	r.replay(t, r.letters(t, 1)[0], 1)
	again := r.letters(t, 2)[1]
	again.Headers = slices.DeleteFunc(again.Headers, func(h kgo.RecordHeader) bool { return h.Key == "hapax_dlt_omitted" })
	r.sendLarge(t, &kgo.Record{Topic: r.topic, Value: value, Headers: again.Headers})
	kafkatest.Until(t, "the replay", func() bool { return len(r.handled()) == 2 })
	r.untilStored(t, 0, 3)
	m.stop(t)
	r.checkOnce(t, "poison")
}

func TestRotatedSecretAcceptsEarlierLetters(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b")
	m := r.start(t, r.work(1, failing(errHandler, "a", "b")))
	dead := r.letters(t, 2)
	r.untilStored(t, 0, 2)
	m.stop(t)
	for i, want := range []float64{1, 0} {
		if err := deadletter.RotateSecret(t.Context(), r.eng); err != nil {
			t.Fatal(err)
		}
		m = r.start(t, r.work(1, nil))
		r.replay(t, dead[i], 1)
		r.untilStored(t, 0, int64(3+i))
		m.counts(t, want, "reopened_total")
		m.counts(t, 1-want, "refused_replays_total", r.topic, "seal")
		m.stop(t)
	}
}

// A consumer that runs seals with the new secret, and accepts what others have sealed with it. One that
// was rotated out twice is worthless at once: others may know it.
func TestRotatedSecretIsThatOfConsumersThatRun(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	var healthy atomic.Bool
	m := r.start(t, r.work(1, func(context.Context, *engine.Tx, *Record) error {
		if healthy.Load() {
			return nil
		}
		return errHandler
	}))
	first := r.letters(t, 1)[0]
	r.untilStored(t, 0, 1)
	rotate := func() {
		t.Helper()
		if err := deadletter.RotateSecret(t.Context(), r.eng); err != nil {
			t.Fatal(err)
		}
	}
	rotate()
	r.send(t, 0, "b")
	second := r.letters(t, 2)[1]
	r.untilStored(t, 0, 2)
	healthy.Store(true)
	rotate()
	r.replay(t, second, 1) // sealed between the rotations
	r.untilStored(t, 0, 3)
	m.counts(t, 1, "reopened_total")
	m.counts(t, 0, "refused_replays_total", r.topic, "seal")
	r.replay(t, first, 1) // sealed before both
	r.untilStored(t, 0, 4)
	m.counts(t, 1, "reopened_total")
	m.counts(t, 1, "refused_replays_total", r.topic, "seal")
	m.stop(t)
}

// The copy has the secret of the original, and its claims.
func TestRestoredCopyRefusesTheLettersOfTheOriginal(t *testing.T) {
	for name, replaces := range map[string]bool{"a copy": false, "the store that replaces the original": true} {
		t.Run(name, func(t *testing.T) {
			r := newRigOn(t, func(t testing.TB) storage.Store { return inDir(t, filepath.Join(t.TempDir(), "store")) }, 1)
			r.send(t, 0, "poison")
			m := r.start(t, r.work(1, failing(errHandler, "poison")))
			dead := r.letters(t, 1)[0]
			r.untilStored(t, 0, 1)
			m.stop(t)
			dir := filepath.Join(t.TempDir(), "backup")
			if err := r.eng.Admin().Backup(t.Context(), dir); err != nil {
				t.Fatal(err)
			}
			r.newStore = func(t testing.TB) storage.Store { return inDir(t, dir) }
			r.replaceStore(t)
			r.replay(t, dead, 1)
			m = r.start(t, r.work(1, nil), func(o *Options) {
				o.Recovery = Recovery{ErrForeignStore: TrustStore}
				o.Routes[0].DeadLetters.RestoredStore = replaces
			})
			r.untilStored(t, 0, 2)
			if replaces {
				m.counts(t, 1, "reopened_total")
			} else {
				m.counts(t, 1, "refused_replays_total", r.topic, "store")
				m.counts(t, 0, "reopened_total")
			}
			m.stop(t)
		})
	}
}

// The replays of a letter that was too old and was identified by its position have the times at which
// they were sent. They are one event, however far these times are apart.
func TestReplaysOfALetterWithoutAClaimAreOneEvent(t *testing.T) {
	const week = 7 * 24 * time.Hour
	r := newRig(t, 1)
	rec := r.event(0, "a")
	rec.Headers, rec.Timestamp = nil, time.Now().AddDate(-1, 0, 0)
	r.Produce(t, rec)
	m := r.start(t, r.work(1, nil))
	dead := r.letters(t, 1)[0]
	r.untilStored(t, 0, 1)
	m.stop(t)
	broken := true
	m = r.start(t, r.work(1, func(context.Context, *engine.Tx, *Record) error {
		if broken {
			return errHandler
		}
		return nil
	}))
	for _, ago := range []time.Duration{3 * week, 0, 2 * week} {
		r.Produce(t, &kgo.Record{Topic: r.topic, Key: dead.Key, Value: dead.Value, Headers: dead.Headers, Timestamp: time.Now().Add(-ago)})
	}
	again := r.letters(t, 2)[1]
	r.untilStored(t, 0, 4)
	if n := len(r.handled()); n != 1 {
		t.Errorf("%d replays were handled", n)
	}
	broken = false
	r.replay(t, again, 2) // with a claim
	r.untilStored(t, 0, 6)
	m.stop(t)
	all := r.handled()
	if len(all) != 2 || !all[1].reopened || r.effects(t, all[0].id) != 1 {
		t.Errorf("handled are %+v", all)
	}
}

// Ids that begin anew each month, in records whose timestamps date the events: an id and a week are
// the event. The replay of a letter is not a duplicate of the event with its id in another week.
func TestReplayOfALetterIsNotADuplicateOfAnotherWeeksEvent(t *testing.T) {
	const week = 7 * 24 * time.Hour
	r := newRig(t, 1)
	rec := func(value string, at time.Time) *kgo.Record {
		return &kgo.Record{Topic: r.topic, Value: []byte(value), Timestamp: at, Headers: []kgo.RecordHeader{{Key: "message_id", Value: []byte("7")}}}
	}
	r.Produce(t, rec("of a year ago", time.Now().AddDate(-1, 0, 0)), rec("of two weeks ago", time.Now().Add(-2*week)))
	m := r.start(t, r.work(1, nil))
	dead := r.letters(t, 1)[0]
	r.untilStored(t, 0, 2)
	r.Produce(t, &kgo.Record{Topic: r.topic, Key: dead.Key, Value: dead.Value, Headers: dead.Headers, Timestamp: time.Now()})
	r.untilStored(t, 0, 3)
	m.stop(t)
	if n := len(r.handled()); n != 2 {
		t.Errorf("%d events were handled, want that of two weeks ago and the replay", n)
	}
}
