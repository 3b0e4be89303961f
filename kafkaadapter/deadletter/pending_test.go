package deadletter

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// goldenV1 is the letter of goldenRecord as earlier versions stored it.
const goldenV1 = "01066f7264657273" + "06" + "ce49" + "f6c9efa9d565" + "00" + "00" + "0276" +
	"03" + "0a6d6573736167655f69640237" + "076e6f7468696e6700" + "05656d70747901" +
	"08617474656d707473" + "132a6572726f72732e6572726f72537472696e67" + "1768616e646c696e673a206f70656e202f783a20676f6e65" + "05" +
	"0762696c6c696e67" + "08696e766f69636573" + "02" + "0137" + "80adda810d" + "c0a9d33a" + "0106" +
	"11" + "d37651a37ff9ac01aa5c510909686394" + "0123456789abcdef0000000000000010" + "07"

func goldenRecord() *kgo.Record {
	r := aRecord("message_id", "7")
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: "nothing"}, kgo.RecordHeader{Key: "empty", Value: []byte{}})
	r.Key = nil
	return r
}

func unhex(t *testing.T, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Stores of earlier versions contain these bytes.
func TestLettersOfEarlierVersionsAreRead(t *testing.T) {
	for _, more := range []Headers{Neutral, Spring} {
		want := []*kgo.Record{aLetter(t, goldenRecord()).record(more)}
		if got, err := parseLetters(unhex(t, goldenV1), more); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
		}
	}
	without := "010174" + "00" + "00" + "00" + "00" + "00" + "01" + "00" + "026e6f" + "00" + "00" + "00" + "00" + "00" + "00" + "00" +
		"00000000000000000000000000000000" + "00"
	got, err := parseLetters(unhex(t, without), Neutral)
	if err != nil || ReasonOf(got[0]) != "no" || got[0].Key != nil || got[0].Value == nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// Stores contain these bytes: they change only with the version.
func TestPendingEncodingIsGolden(t *testing.T) {
	r := goldenRecord()
	want := "02" + "02" + "00" + "0276" + "03" + "0a6d6573736167655f69640237" + "076e6f7468696e6700" + "05656d70747901" +
		"01" + "00" + "00"
	letters := []*kgo.Record{{Key: r.Key, Value: r.Value, Headers: r.Headers}, {Key: []byte{}}}
	if got := hex.EncodeToString(encodeLetters(letters)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, err := parseLetters(unhex(t, want), Neutral); err != nil || !reflect.DeepEqual(got, letters) {
		t.Errorf("%+v, %v", got, err)
	}
}

// An unreadable letter would stop its partition forever.
func TestEveryLetterIsReadAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOfN(rapid.Byte(), 0, 40))
		var letters []*kgo.Record
		for range rapid.IntRange(1, 3).Draw(t, "letters") {
			r := &kgo.Record{
				Topic: rapid.String().Draw(t, "topic"), Partition: rapid.Int32().Draw(t, "partition"), Offset: rapid.Int64().Draw(t, "offset"),
				Timestamp: time.UnixMilli(rapid.Int64().Draw(t, "timestamp")), Key: some.Draw(t, "key"), Value: some.Draw(t, "value"),
				Attrs: kgo.NewRecordAttrs(kgo.RecordAttrsOpts{TimestampType: rapid.Int8Range(-1, 1).Draw(t, "timestamp type")}),
			}
			for range rapid.IntRange(0, 4).Draw(t, "headers") {
				key := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"message_id", "ce_id", "timestamp", dltGroup})).Draw(t, "name")
				r.Headers = append(r.Headers, kgo.RecordHeader{Key: key, Value: some.Draw(t, "header")})
			}
			f := Failure{
				Reason: Reason(rapid.String().Draw(t, "reason")), Attempts: rapid.Uint32().Draw(t, "attempts"),
				Generation: rapid.Uint64().Draw(t, "generation"),
				Event: identify.Identity{
					ID:       make([]byte, rapid.SampledFrom([]int{0, 1, limits.IDBytes, limits.IDBytes + 1}).Draw(t, "id")),
					Time:     time.Unix(rapid.Int64Range(-1<<37, 1<<38).Draw(t, "time"), rapid.Int64Range(0, 1e9-1).Draw(t, "nanoseconds")),
					IDRule:   identify.IDRule(rapid.IntRange(0, len(identify.IDRules)+1).Draw(t, "id rule")),
					TimeRule: identify.TimeRule(rapid.IntRange(0, len(identify.TimeRules)+1).Draw(t, "time rule")),
				},
			}
			if text := rapid.String().Draw(t, "error"); text != "" {
				f.Err = errors.New(text)
			}
			i := Issuer{
				Group: rapid.String().Draw(t, "group"), Scope: rapid.String().Draw(t, "scope"), Incarnation: rapid.Uint64().Draw(t, "incarnation"),
				Secret: rapid.SampledFrom([][]byte{nil, aSecret}).Draw(t, "secret"),
			}
			letters = append(letters, i.Letter(r, nil, f, Headers(rapid.IntRange(0, 2).Draw(t, "more"))))
		}
		got, err := parseLetters(encodeLetters(letters), Neutral)
		if err != nil || !reflect.DeepEqual(got, letters) {
			t.Fatalf("%+v, %v; want %+v", got, err, letters)
		}
	})
}

func TestDamagedLettersAreRejected(t *testing.T) {
	refused := func(name string, b []byte) {
		t.Helper()
		if letters, err := parseLetters(b, Neutral); !errors.Is(err, ErrStored) || letters != nil {
			t.Errorf("%s: %+v, %v", name, letters, err)
		}
	}
	golden := unhex(t, goldenV1)
	for version, good := range map[int][]byte{1: golden, 2: encodeLetters([]*kgo.Record{goldenRecord(), aRecord()})} {
		if _, err := parseLetters(good, Neutral); err != nil {
			t.Fatal(err)
		}
		for n := range good {
			refused(fmt.Sprintf("version %d, cut after %d bytes", version, n), good[:n])
		}
		refused(fmt.Sprintf("version %d, longer", version), append(slices.Clone(good), 0))
		refused("another version", append([]byte{3}, good[1:]...))
		headers := bytes.Index(good, []byte("\x03\x0amessage_id"))
		refused(fmt.Sprintf("version %d, overlong", version), slices.Concat(good[:headers], []byte{0x83, 0}, good[headers+1:]))
	}
	refused("no letter", []byte{pendingV2, 0})
	at := bytes.LastIndex(golden, []byte{byte(identify.IDHeader), byte(identify.TimeRecord)})
	for _, rules := range [][]byte{{0, 1}, {6, 1}, {1, 0}, {1, 7}} {
		refused(fmt.Sprintf("rules %v", rules), slices.Concat(golden[:at], rules, golden[at+2:]))
	}

	// A letter of version 1 whose fields are set one by one.
	with := func(field int, value string) []byte {
		fields := []string{
			"01", "0174", "00", "00", "00", "00", "00", "00", "00", "00", "00", "00", "00", "00", "00", "00", // version to generation
			"0178", "00", "00", "0101", "00", strings.Repeat("00", 16), "00", // id, time, rules, seal, store, incarnation
		}
		fields[field] = value
		return unhex(t, strings.Join(fields, ""))
	}
	if _, err := parseLetters(with(0, "01"), Neutral); err != nil {
		t.Fatalf("the letter to be damaged: %v", err)
	}
	for _, tt := range []struct {
		name  string
		field int
		value string
	}{
		{"partition 2^31", 2, "8080808010"},
		{"offset 2^63", 3, "80808080808080808002"},
		{"timestamp type 2", 5, "04"},
		{"timestamp type -2", 5, "03"},
		{"attempts 2^32", 12, "8080808010"},
		{"year 10000", 17, "8086a2ffdf0e"},
		{"year 0", 17, "81dc8ff9ce03"},
		{"a second of nanoseconds", 18, "8094ebdc03"},
	} {
		refused(tt.name, with(tt.field, tt.value))
	}

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	refused("16 million headers", with(8, "80808008"))
	refused("16 million letters", unhex(t, "0280808008000000"))
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("%d bytes are allocated for headers and letters that do not exist", got)
	}
}

func FuzzParseLetters(f *testing.F) {
	golden, _ := hex.DecodeString(goldenV1)
	f.Add(golden)
	f.Add(encodeLetters([]*kgo.Record{goldenRecord(), aRecord()}))
	f.Add([]byte{pendingV1})
	f.Fuzz(func(t *testing.T, b []byte) {
		kept := bytes.Clone(b)
		letters, err := parseLetters(b, Spring)
		if !bytes.Equal(b, kept) {
			t.Fatalf("the input was changed")
		}
		if err != nil {
			if !errors.Is(err, ErrStored) {
				t.Fatalf("not the stated error: %v", err)
			}
			return
		}
		if again := encodeLetters(letters); b[0] == pendingV2 && !bytes.Equal(again, b) {
			t.Fatalf("%x is accepted, but would be written as %x", b, again)
		}
	})
}

func TestLettersOfAnySizeAreStoredInParts(t *testing.T) {
	eng := openEngine(t)
	key := []byte("key")
	update := func(fn func(tx *engine.Tx) error) {
		t.Helper()
		if err := eng.Update(t.Context(), fn); err != nil {
			t.Fatal(err)
		}
	}
	for _, size := range []int{0, 1, partBytes - 200, partBytes, partBytes + 1, 5*partBytes + 5} {
		first, second := aLetter(t, aRecord("message_id", "7")).record(Neutral), aLetter(t, aRecord()).record(Spring)
		first.Value = bytes.Repeat([]byte("v"), size)
		want := []*kgo.Record{first, second}
		update(func(tx *engine.Tx) error { _, err := Put(tx, key, want); return err })
		update(func(tx *engine.Tx) error {
			p, err := Get(tx, key, Neutral)
			if err != nil {
				return err
			}
			if !reflect.DeepEqual(p.Letters, want) {
				t.Errorf("letters of %d bytes differ after a round trip, in %d parts", size, p.parts)
			}
			return p.Delete(tx)
		})
		update(func(tx *engine.Tx) error {
			for part := range 8 {
				if _, found, err := tx.Get(partKey(key, part)); err != nil || found {
					t.Errorf("part %d is still stored, %v", part, err)
				}
			}
			return nil
		})
	}
}
