package entry_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"testing"

	"github.com/hapax-dev/hapax/internal/entry"
)

var full = entry.Entry{
	Attempts: 3, Refused: 2, NotBefore: 1_700_000_000_123, LastError: "no", ID: "id-1", Created: 1_600_000_000_000, Due: 1_600_000_000_001,
	Time: 1_600_000_000_002, Stamped: true,
	Topic: "orders", Partition: 7, OrderingKey: []byte("o"), Key: []byte("k"), Value: []byte{},
	Headers: []entry.Header{{Key: "h", Value: []byte("v")}, {Key: "", Value: nil}},
}

// docs/format.md describes the bytes; they are stored forever.
func TestGoldenEntries(t *testing.T) {
	for _, c := range []struct {
		e    entry.Entry
		want string
	}{
		{full, "01 03 02 f6a1abfef962 026e6f 0469642d31 8080f4f6905d 8280f4f6905d 8480f4f6905d 01 066f7264657273 0e 016f 026b 01 02 0168 0276 00 00"},
		{entry.Entry{ID: "i", Topic: "t", Partition: entry.NoPartition}, "01 00 00 00 00 0169 00 00 00 00 0174 01 00 00 00 00"},
	} {
		got := c.e.Append(nil)
		want, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(c.want), []byte(" "), nil)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("encoded as\n%x, the format is\n%x", got, want)
		}
		if back, err := entry.Parse(want); err != nil || !reflect.DeepEqual(back, c.e) {
			t.Errorf("decoded as %+v, %v", back, err)
		}
		if len(got) > c.e.Size() {
			t.Errorf("%d bytes, Size says %d", len(got), c.e.Size())
		}
	}
}

func TestGoldenKeys(t *testing.T) {
	g := entry.Group{0: 0xaa, 15: 0xbb}
	for _, c := range []struct {
		key  []byte
		want string
	}{
		{entry.ReadyKey(258), "72" + "0000000000000102"},
		{entry.DelayedKey(1, 2), "64" + "0000000000000001" + "0000000000000002"},
		{entry.HeldKey(g, 3), "68" + "aa0000000000000000000000000000bb" + "0000000000000003"},
		{entry.ParkedKey("ab", 4), "70" + "026162" + "0000000000000004"},
		{entry.Produced{Entries: 300, Delayed: 2, Bytes: 7}.Append(nil), "ac020207"},
		{entry.Gone{Entries: 5, Delayed: 4, Parked: 3, Redriven: 2, Dropped: 1, Bytes: 8}.Append(nil), "050403020108"},
	} {
		if hex.EncodeToString(c.key) != c.want {
			t.Errorf("%x, the format is %s", c.key, c.want)
		}
	}
	if back, place, err := entry.ParseHeldKey(entry.HeldKey(g, 3)); back != g || place != 3 || err != nil {
		t.Error(back, place, err)
	}
	if due, err := entry.DelayedDue(entry.DelayedKey(9, 2)); due != 9 || err != nil {
		t.Error(due, err)
	}
}

func TestAttemptsDoNotChangeTheSizeOfAnEntry(t *testing.T) {
	e := full
	before := e.Bytes()
	if e.Attempts, e.LastError = 9, "a longer one"; e.Bytes() != before || before == 0 {
		t.Errorf("an entry counts %d bytes, and %d after an attempt", before, e.Bytes())
	}
}

func TestNewerVersionIsNotDamage(t *testing.T) {
	b := full.Append(nil)
	b[0]++
	if _, err := entry.Parse(b); !errors.Is(err, entry.ErrVersion) {
		t.Error(err)
	}
}

func TestGroupsAreTheOrderingKeyOrTopicAndKeyOrTheEntryItself(t *testing.T) {
	group := func(change func(e *entry.Entry)) entry.Group {
		e := entry.Entry{ID: "1", Topic: "t", Key: []byte("k"), OrderingKey: []byte("o")}
		change(&e)
		return e.Group()
	}
	same := func(a, b func(e *entry.Entry)) bool { return group(a) == group(b) }
	noOrdering := func(e *entry.Entry) { e.OrderingKey = nil }
	alone := func(e *entry.Entry) { e.OrderingKey, e.Key = nil, nil }
	for _, c := range []struct {
		what string
		a, b func(e *entry.Entry)
		want bool
	}{
		{"one ordering key, two topics", func(*entry.Entry) {}, func(e *entry.Entry) { e.Topic, e.Key = "u", nil }, true},
		{"two ordering keys", func(*entry.Entry) {}, func(e *entry.Entry) { e.OrderingKey = []byte("p") }, false},
		{"one key, two entries", noOrdering, func(e *entry.Entry) { noOrdering(e); e.ID = "2" }, true},
		{"one key, two topics", noOrdering, func(e *entry.Entry) { noOrdering(e); e.Topic = "u" }, false},
		{"topic and key moved against each other", func(e *entry.Entry) { noOrdering(e); e.Topic = "tk"; e.Key = []byte("x") },
			func(e *entry.Entry) { noOrdering(e); e.Topic = "t"; e.Key = []byte("kx") }, false},
		{"no key, two entries", alone, func(e *entry.Entry) { alone(e); e.ID = "2" }, false},
	} {
		if got := same(c.a, c.b); got != c.want {
			t.Errorf("%s: same group %v", c.what, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(full.Append(nil))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := entry.Parse(b)
		if err == nil && b[0] > 1 && !bytes.Equal(e.Append(nil), b) {
			t.Errorf("%x decodes as %+v, which encodes as %x", b, e, e.Append(nil))
		}
	})
}
