package deadletter

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

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

// Stores contain these bytes: they change only with the version.
func TestPendingEncodingIsGolden(t *testing.T) {
	r := goldenRecord()
	want := "01" + "02" + "00" + "0276" + "03" + "0a6d6573736167655f69640237" + "076e6f7468696e6700" + "05656d70747901" +
		"01" + "00" + "00"
	letters := []*kgo.Record{{Key: r.Key, Value: r.Value, Headers: r.Headers}, {Key: []byte{}}}
	if got := hex.EncodeToString(encodeLetters(letters)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, err := parseLetters(unhex(t, want)); err != nil || !reflect.DeepEqual(got, letters) {
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
			i := Builder{
				Group: rapid.String().Draw(t, "group"), Scope: rapid.String().Draw(t, "scope"), Incarnation: rapid.Uint64().Draw(t, "incarnation"),
				Secrets: Secrets{current: rapid.SampledFrom([][]byte{nil, aSecret}).Draw(t, "secret")},
			}
			letters = append(letters, i.Letter(r, nil, f, Headers(rapid.IntRange(0, 2).Draw(t, "more"))))
		}
		got, err := parseLetters(encodeLetters(letters))
		if err != nil || !reflect.DeepEqual(got, letters) {
			t.Fatalf("%+v, %v; want %+v", got, err, letters)
		}
	})
}

func TestDamagedLettersAreRejected(t *testing.T) {
	refused := func(name string, b []byte) {
		t.Helper()
		if letters, err := parseLetters(b); !errors.Is(err, ErrStored) || letters != nil {
			t.Errorf("%s: %+v, %v", name, letters, err)
		}
	}
	good := encodeLetters([]*kgo.Record{goldenRecord(), aRecord()})
	if _, err := parseLetters(good); err != nil {
		t.Fatal(err)
	}
	for n := range good {
		refused(fmt.Sprintf("cut after %d bytes", n), good[:n])
	}
	refused("longer", append(slices.Clone(good), 0))
	for _, version := range []byte{0, 2, 3} {
		refused("another version", append([]byte{version}, good[1:]...))
	}
	headers := bytes.Index(good, []byte("\x03\x0amessage_id"))
	refused("overlong", slices.Concat(good[:headers], []byte{0x83, 0}, good[headers+1:]))
	refused("no letter", []byte{pendingVersion, 0})

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	refused("16 million headers", unhex(t, "0201"+"00"+"00"+"80808008"))
	refused("16 million letters", unhex(t, "0280808008000000"))
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("%d bytes are allocated for headers and letters that do not exist", got)
	}
}

func FuzzParseLetters(f *testing.F) {
	f.Add(encodeLetters([]*kgo.Record{goldenRecord(), aRecord()}))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		kept := bytes.Clone(b)
		letters, err := parseLetters(b)
		if !bytes.Equal(b, kept) {
			t.Fatalf("the input was changed")
		}
		if err != nil {
			if !errors.Is(err, ErrStored) {
				t.Fatalf("not the stated error: %v", err)
			}
			return
		}
		if again := encodeLetters(letters); !bytes.Equal(again, b) {
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
			p, err := Get(tx, key)
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

// The key of the secrets is stored forever.
func TestKeyOfTheSecretsIsGolden(t *testing.T) {
	if got, want := string(secretKey()), "\x00hapax/kafka\x00k"; got != want {
		t.Errorf("the key is %q, want %q", got, want)
	}
}
