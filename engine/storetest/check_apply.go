package storetest

import (
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
)

// expectClaim checks one claim against a literal; "-" stands for no claim.
func (e *subject) expectClaim(b storage.Bucket, id, want string) {
	e.Helper()
	e.expect("Claim", e.s.Claim, string(key(b, id)), want)
}

// expectState checks one state against a literal; "-" stands for no value.
func (e *subject) expectState(key, want string) {
	e.Helper()
	e.expect("State", e.s.State, key, want)
}

func (e *subject) expect(what string, get func([]byte) ([]byte, bool, error), key, want string) {
	e.Helper()
	v, found, err := get([]byte(key))
	got := string(v)
	if !found {
		got = "-"
	}
	if err != nil || got != want {
		e.Errorf("%s(%q) is %q, %v, want %q", what, key, short(got), err, short(want))
	}
}

func appliedBatchIsVisible(e *env) {
	b := bucket("a", week)
	for i := 1; i <= 20; i++ {
		e.apply(storage.Batch{
			Claims:  numbered(b, 10*i, 10*i+10),
			State:   []storage.StateWrite{set("last", fmt.Sprint(i)), set(fmt.Sprint("n", i), "x")},
			Journal: fmt.Append(nil, "entry ", i),
		})
		e.expectClaim(b, fmt.Sprintf("id-%06d", 10*i), fmt.Sprintf("%v %d", b, 10*i))
		e.expectClaim(b, fmt.Sprintf("id-%06d", 10*i+9), fmt.Sprintf("%v %d", b, 10*i+9))
		e.expectState("last", fmt.Sprint(i))
		e.check(fmt.Sprintf("batch %d applied, not waited for", i))
	}
	e.wait(len(e.waits))
	e.check("all waited for")
}

// inEveryForm runs the check on batches that were just applied, on durable batches, and on batches
// in their final form.
func (e *env) inEveryForm(check func()) {
	e.Helper()
	check()
	e.check("applied")
	e.wait(len(e.waits))
	check()
	e.check("waited for")
	e.settle()
	check()
	e.check("settled")
	e.reopen()
	check()
	e.check("opened again")
}

func laterWriteWins(e *env) {
	b := bucket("a", week)
	e.apply(storage.Batch{
		Claims: []storage.ClaimWrite{
			claim(b, "twice", "first"), claim(b, "other", "x"), claim(b, "twice", "second"),
			claim(b, "removed", "x"), unclaim(b, "removed"),
			unclaim(b, "put again"), claim(b, "put again", "x"),
		},
		State: []storage.StateWrite{
			set("twice", "first"), set("other", "x"), set("twice", "second"),
			set("removed", "x"), unset("removed"),
			unset("put again"), set("put again", "x"),
		},
	})
	e.inEveryForm(func() {
		e.Helper()
		e.expectClaim(b, "twice", "second")
		e.expectClaim(b, "removed", "-")
		e.expectClaim(b, "put again", "x")
		e.expectState("twice", "second")
		e.expectState("removed", "-")
		e.expectState("put again", "x")
	})
	e.apply(storage.Batch{
		Claims: []storage.ClaimWrite{claim(b, "twice", "third"), claim(b, "removed", "y")},
		State:  []storage.StateWrite{set("twice", "third"), set("removed", "y")},
	})
	e.inEveryForm(func() {
		e.Helper()
		e.expectClaim(b, "twice", "third")
		e.expectClaim(b, "removed", "y")
		e.expectState("twice", "third")
		e.expectState("removed", "y")
	})
}

func nilValueRemoves(e *env) {
	b := bucket("a", week)
	e.claims(claim(b, "settled", "x"), claim(b, "stays", "x"))
	e.state(set("settled", "x"), set("stays", "x"))
	e.settle()
	e.claims(claim(b, "fresh", "x"))
	e.state(set("fresh", "x"))
	e.apply(storage.Batch{
		Claims: []storage.ClaimWrite{unclaim(b, "settled"), unclaim(b, "fresh"), unclaim(b, "never there")},
		State:  []storage.StateWrite{unset("settled"), unset("fresh"), unset("never there")},
	})
	e.inEveryForm(func() {
		e.Helper()
		for _, id := range []string{"settled", "fresh", "never there"} {
			e.expectClaim(b, id, "-")
			e.expectState(id, "-")
		}
		e.expectClaim(b, "stays", "x")
		e.expectState("stays", "x")
	})
}

func emptyValueIsNotAbsent(e *env) {
	b := bucket("a", week)
	e.apply(storage.Batch{
		Claims: []storage.ClaimWrite{{Key: key(b, "empty"), Record: []byte{}}},
		State:  []storage.StateWrite{{Key: []byte("empty"), Value: []byte{}}},
	})
	e.inEveryForm(func() {
		e.Helper()
		e.expectClaim(b, "empty", "")
		e.expectState("empty", "")
		seen := 0
		if err := e.s.ScanState(storage.Span{Prefix: []byte("empty")}, func(_, _ []byte) error { seen++; return nil }); err != nil || seen != 1 {
			e.Errorf("ScanState shows the empty value %d times, %v", seen, err)
		}
	})
	e.apply(storage.Batch{
		Claims: []storage.ClaimWrite{{Key: key(b, "empty")}},
		State:  []storage.StateWrite{{Key: []byte("empty")}},
	})
	e.inEveryForm(func() {
		e.Helper()
		e.expectClaim(b, "empty", "-")
		e.expectState("empty", "-")
	})
}

// Ids and scopes that an ambiguous key encoding would confuse.
var (
	trickyIDs = []string{
		"b", "bc", "c", "bcd", "\x00", "\x00\x00", "\x01", "|", "||", "\xff", "\xff\xff", "b\x00", "b\x00\x01", "b|c", "B",
		"0123456789abcdef", "0123456789abcde", "0123456789ABCDEF", "0123456789abcdef00",
		"6ba7b810-9dad-11d1-80b4-00c04fd430c8", "6BA7B810-9DAD-11D1-80B4-00C04FD430C8", "6ba7b8109dad11d180b400c04fd430c8",
	}
	trickyScopes = []string{"a", "ab", "abc", "a|", "a\x00", "a\x00\xff", "a\x00\x01", "a\xff", "A", "\x00", "\xff\xff"}
)

func fullKeyCompare(e *env) {
	// About half of the keys are claimed; the others must be absent. Any two ids differ in one of
	// the five bits of their numbers, so that one bucket has only the first, and another only the
	// second.
	type one struct {
		b      storage.Bucket
		id     string
		record string
	}
	var all []one
	var batch storage.Batch
	for i, scope := range trickyScopes {
		for j, b := range []storage.Bucket{bucket(scope, week), bucket(scope, week+1)} {
			for n, id := range trickyIDs {
				c := one{b, id, "-"}
				if turn := i + j; n>>(turn%5)&1 == turn/5&1 {
					c.record = fmt.Sprintf("record of %v %q", b, id)
					batch.Claims = append(batch.Claims, claim(b, id, c.record))
				}
				all = append(all, c)
			}
		}
	}
	e.apply(batch)
	e.inEveryForm(func() {
		e.Helper()
		for _, c := range all {
			e.expectClaim(c.b, c.id, c.record)
		}
	})
}

func claimsAndStateAreApart(e *env) {
	b := bucket("a", week)
	k := string(key(b, "x"))
	e.claims(claim(b, "x", "a claim"))
	e.inEveryForm(func() { e.Helper(); e.expectClaim(b, "x", "a claim"); e.expectState(k, "-") })
	e.state(set(k, "a state"))
	e.inEveryForm(func() { e.Helper(); e.expectClaim(b, "x", "a claim"); e.expectState(k, "a state") })
	e.claims(unclaim(b, "x"))
	e.inEveryForm(func() { e.Helper(); e.expectClaim(b, "x", "-"); e.expectState(k, "a state") })
}

// largestRecord is the maximum size of a claim's record: the engine's MaxDataBytes and the other
// fields.
const largestRecord = 256<<10 + 1024

func largeKeysAndValues(e *env) {
	b := bucket(string(noise(1, 255)), week)
	id := string(noise(2, 1024))
	e.apply(storage.Batch{
		Claims:  []storage.ClaimWrite{claim(b, id, string(noise(3, largestRecord))), claim(b, id[:1023], "shorter")},
		State:   []storage.StateWrite{set(string(noise(4, 2048)), string(noise(5, 1<<20)))},
		Journal: noise(6, 1<<20),
	})
	e.inEveryForm(func() { e.Helper(); e.expectClaim(b, id[:1023], "shorter") })
}

func applyKeepsNoReference(e *env) {
	b := bucket("a", week)
	for i := range 5 {
		batch := storage.Batch{
			Seq:     e.told.view.lastSeq + 1,
			Claims:  numbered(b, i, i+3),
			State:   []storage.StateWrite{set(fmt.Sprint("key", i), "value")},
			Journal: []byte("journal"),
		}
		own := cloneBatch(&batch)
		wait, err := e.s.Apply(&batch)
		if err != nil {
			e.Fatalf("Apply: %v", err)
		}
		for _, w := range batch.Claims {
			scribble(w.Key)
			scribble(w.Record)
		}
		scribble(batch.State[0].Key)
		scribble(batch.State[0].Value)
		scribble(batch.Journal)
		clear(batch.Claims)
		clear(batch.State)
		batch.Seq = 1 << 40
		e.told.apply(own)
		e.entries[own.Seq] = own.Journal
		e.waits = append(e.waits, wait)
	}
	e.inEveryForm(func() {})
}

func scribble(b []byte) {
	for i := range b {
		b[i] = '#'
	}
}

func readsReturnCopies(e *env) {
	b := bucket("a", week)
	e.claims(claim(b, "x", "record"))
	e.state(set("x", "value"))
	for _, form := range []string{"fresh", "settled"} {
		record, _, err := e.s.Claim(key(b, "x"))
		value, _, err2 := e.s.State([]byte("x"))
		if err != nil || err2 != nil {
			e.Fatalf("reading: %v, %v", err, err2)
		}
		keptRecord, keptValue := record, value
		e.claims(claim(b, "x", "RECORD"), claim(b, "y", "y"))
		e.state(set("x", "VALUE"))
		e.settle()
		if string(keptRecord) != "record" || string(keptValue) != "value" {
			e.Fatalf("%s: later batches changed what Claim and State had returned to %q and %q", form, keptRecord, keptValue)
		}
		e.claims(claim(b, "x", "record"))
		e.state(set("x", "value"))
		if form == "fresh" {
			e.settle()
		}
		record, _, _ = e.s.Claim(key(b, "x"))
		value, _, _ = e.s.State([]byte("x"))
		scribble(record)
		scribble(value)
		e.expectClaim(b, "x", "record")
		e.expectState("x", "value")
	}
}
