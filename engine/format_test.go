package engine

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/keyspace"
	"github.com/hapax-dev/hapax/weekbucket"
)

// docs/format.md describes the golden bytes below. They are stored forever: if a test fails here,
// existing stores can no longer be read. A new form gets a new version and a golden test of its
// own.

const aWeek weekbucket.Week = 0x19cd4

func wantBytes(t *testing.T, got []byte, want string) {
	t.Helper()
	if want = strings.ReplaceAll(want, " ", ""); hex.EncodeToString(got) != want {
		t.Errorf("encoded as\n%x, the format is\n%s", got, want)
	}
}

func TestGoldenHash(t *testing.T) {
	key := storage.Bucket{Scope: "a", Week: aWeek}.AppendKey(nil, []byte("bc"))
	c := &core{seed: 0x0123456789abcdef}
	if got, want := c.hash(key), uint64(0xbea42bc78c4ab3e1); got != want {
		t.Errorf("hash %016x, the format has %016x", got, want)
	}
	if got := xxh3.HashSeed(nil, 0); got != 0x2d06800538d394c2 { // the reference implementation's
		t.Errorf("XXH3-64 of nothing is %016x", got)
	}
}

func TestGoldenRecords(t *testing.T) {
	for _, c := range []struct {
		record ClaimRecord
		topic  uint64
		want   string
	}{
		{ClaimRecord{State: Done, FirstSeen: time.UnixMilli(0).UTC()}, 0, "01 00 00 00 00 00"},
		{ClaimRecord{State: Done, FirstSeen: time.UnixMilli(1).UTC(), Origin: Origin{Partition: -1, Offset: 300}}, 5, "01 00 02 05 01 d804"},
		{ClaimRecord{State: Done, Generation: 200, FirstSeen: time.UnixMilli(-1).UTC(), Origin: Origin{Partition: 3, Offset: -1}}, 128, "01 c801 01 8001 06 01"},
		{ClaimRecord{State: Done, FirstSeen: time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC), Origin: Origin{Partition: 1<<31 - 1, Offset: 1<<63 - 1}}, 128,
			"01 00 80f8c08b9767 8001 feffffff0f feffffffffffffffff01"},
		{ClaimRecord{State: DeadLettered, FirstSeen: time.UnixMilli(1).UTC(), Origin: Origin{Partition: -1, Offset: 300}}, 5, "02 00 02 05 01 d804"},
		{ClaimRecord{State: Done, Generation: 1, FirstSeen: time.UnixMilli(1).UTC(), Window: time.Millisecond}, 5, "11 01 02 05 00 00 01"},
		{ClaimRecord{State: DeadLettered, FirstSeen: time.UnixMilli(1).UTC(), Window: time.Hour}, 5, "12 00 02 05 00 00 80dddb01"},
		{ClaimRecord{State: Done, FirstSeen: time.UnixMilli(1).UTC(), Window: time.Millisecond, SentUnixMilli: -1}, 5, "19 00 02 05 00 00 01 01"},
		{ClaimRecord{State: Leased, FirstSeen: time.UnixMilli(1).UTC(), Window: time.Hour, SentUnixMilli: 2, Owner: 2, LeaseEnd: time.UnixMilli(1).UTC(), Data: "d"}, 5,
			"5b 00 02 05 00 00 80dddb01 04 0000000000000002 02 01 64"},
		{ClaimRecord{State: Leased, FirstSeen: time.UnixMilli(1).UTC(), Owner: 1 << 56, LeaseEnd: time.UnixMilli(-1).UTC()}, 5, "03 00 02 05 00 00 0100000000000000 01"},
		{ClaimRecord{State: Leased, FirstSeen: time.UnixMilli(1).UTC(), Window: time.Millisecond, Owner: 2, LeaseEnd: time.UnixMilli(1).UTC(), Fingerprint: "fp"}, 5,
			"33 00 02 05 00 00 01 0000000000000002 02 02 6670"},
		{ClaimRecord{State: Done, FirstSeen: time.UnixMilli(1).UTC(), Window: time.Millisecond, Fingerprint: "fp", Data: "data"}, 5, "71 00 02 05 00 00 01 02 6670 04 64617461"},
		{ClaimRecord{State: Released, Generation: 2, FirstSeen: time.UnixMilli(1).UTC()}, 5, "04 02 02 05 00 00"},
		{ClaimRecord{State: DeadLettered, Generation: 1<<64 - 1, FirstSeen: time.UnixMilli(0).UTC()}, 0, "02 ffffffffffffffffff01 00 00 00 00"},
	} {
		b := appendLongRecord(nil, &c.record, c.topic)
		wantBytes(t, b, c.want)
		wantRecord(t, b, c.record, c.topic)
	}
}

func wantRecord(t *testing.T, b []byte, want ClaimRecord, wantTopic uint64) {
	t.Helper()
	r, topic, err := parseRecord(b)
	if err != nil || r != want || topic != wantTopic {
		t.Errorf("%x is read as %+v, topic %d, %v", b, r, topic, err)
	}
}

func TestGoldenShortRecords(t *testing.T) {
	from := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	to := from.Add((1<<40 - 1) * time.Millisecond)
	for _, c := range []struct {
		record ClaimRecord
		topic  uint64
		short  string
		long   string // which is only read if there is no short form
	}{
		{ClaimRecord{FirstSeen: from}, 0, "80 00 0000000000 00", "01 00 80a0b7e6eb5b 00 00 00"},
		{ClaimRecord{FirstSeen: from.Add(time.Millisecond), Origin: Origin{Partition: 1, Offset: 300}}, 5, "85 01 0000000001 ac02", "01 00 82a0b7e6eb5b 05 02 d804"},
		{ClaimRecord{FirstSeen: time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC), Origin: Origin{Partition: 1<<31 - 1, Offset: 1<<63 - 1}}, 127,
			"ff ffffffff07 2d5a513600 ffffffffffffffff7f", "01 00 80f8c08b9767 7f feffffff0f feffffffffffffffff01"},
		{ClaimRecord{FirstSeen: to}, 1, "81 00 ffffffffff 00", ""},
		{ClaimRecord{FirstSeen: to.Add(time.Millisecond)}, 1, "", "01 00 80a0b7e6eb9b01 01 00 00"},
		{ClaimRecord{FirstSeen: from.Add(-time.Millisecond)}, 1, "", "01 00 fe9fb7e6eb5b 01 00 00"},
		{ClaimRecord{FirstSeen: from}, 128, "", "01 00 80a0b7e6eb5b 8001 00 00"},
		{ClaimRecord{FirstSeen: from, Origin: Origin{Partition: -1}}, 1, "", "01 00 80a0b7e6eb5b 01 01 00"},
		{ClaimRecord{FirstSeen: from, Origin: Origin{Offset: -1}}, 1, "", "01 00 80a0b7e6eb5b 01 00 01"},
		{ClaimRecord{FirstSeen: from, Generation: 1}, 1, "", "01 01 80a0b7e6eb5b 01 00 00"},
		{ClaimRecord{FirstSeen: from, Window: time.Millisecond}, 1, "", "11 00 80a0b7e6eb5b 01 00 00 01"},
		{ClaimRecord{FirstSeen: from, Fingerprint: "f"}, 1, "", "21 00 80a0b7e6eb5b 01 00 00 01 66"},
		{ClaimRecord{FirstSeen: from, Data: "d"}, 1, "", "41 00 80a0b7e6eb5b 01 00 00 01 64"},
	} {
		c.record.State = Done
		b, long := appendRecord(nil, &c.record, c.topic), appendLongRecord(nil, &c.record, c.topic)
		if c.short == "" {
			c.short = c.long
		}
		wantBytes(t, b, c.short)
		if c.long != "" {
			wantBytes(t, long, c.long)
		}
		wantRecord(t, b, c.record, c.topic)
		if r, _, err := parseRecord(long); (err == nil) != bytes.Equal(b, long) || err != nil && !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%x is read as %+v, %v", long, r, err)
		}
	}
}

func TestGoldenState(t *testing.T) {
	wantBytes(t, join(applicationSpace, []byte("k\x00")), "68 6b00")
	wantBytes(t, join(spacePrefix(keyspace.New("outbox/a-1")), []byte("k\x00")), "78 6f7574626f782f612d31 00 6b00")
	wantBytes(t, EncodeInt64(-2), "fffffffffffffffe")
	p := OffsetKey{Group: "g", Topic: "orders", Partition: 3}
	wantBytes(t, p.stateKey(), "6f 01 67 06 6f7264657273 00000003")
	if got, err := parsePosition(p.stateKey()); err != nil || got != p {
		t.Errorf("position read back as %+v, %v", got, err)
	}
	o := Offset{Next: 8, LeaderEpoch: 2, TopicID: [16]byte{0: 1, 15: 0xff}}
	wantBytes(t, o.encode(), "10 04 010000000000000000000000000000ff")
	if got, err := parseOffset(o.encode()); err != nil || got != o {
		t.Errorf("offset read back as %+v, %v", got, err)
	}
	wantBytes(t, Offset{Next: 300, LeaderEpoch: -1}.encode(), "d804 01 00000000000000000000000000000000")

	at := time.UnixMilli(-300).UTC()
	wantBytes(t, holdKey("lag"), "64 6c6167")
	wantBytes(t, encodeHold(at), "d704")
	if got, err := parseHold(encodeHold(at)); err != nil || !got.Equal(at) {
		t.Errorf("hold read back as %v, %v", got, err)
	}

	wantBytes(t, keyOldest, "6d 6f6c64657374")
	wantBytes(t, keyStart, "6d 7374617274")
	wantBytes(t, keyDrop, "6d 64726f70")
	dropped := []storage.Bucket{{Scope: "a", Week: aWeek}, {Scope: "a\x00", Week: aWeek + 1}}
	wantBytes(t, encodeBuckets(dropped), "07 61 0001 00019cd4  09 61 00ff 0001 00019cd5")
	if got, err := parseBuckets(encodeBuckets(dropped)); err != nil || fmt.Sprint(got) != fmt.Sprint(dropped) {
		t.Errorf("buckets read back as %v, %v", got, err)
	}
}

func TestNumbersAreDecodedInTheirShortestFormOnly(t *testing.T) {
	rec := []byte{1, 0, 2, 5, 1, 0xd8, 0x04}
	if _, _, err := parseRecord(rec); err != nil {
		t.Fatal(err)
	}
	for _, long := range [][]byte{
		{1, 0x80, 0, 2, 5, 1, 0xd8, 0x04},
		{1, 0, 0x82, 0, 5, 1, 0xd8, 0x04},
		{1, 0, 2, 5, 1, 0xd8, 0x84, 0x00},
		{1, 0, 2, 5, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, // more than 64 bits
		{0x85, 0x80, 0, 0, 0, 0, 0, 0, 0},
		{0x85, 0, 0, 0, 0, 0, 0, 0x80, 0},
	} {
		if r, _, err := parseRecord(long); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%x is read as %+v, %v", long, r, err)
		}
	}
}

func TestRecordInAnUnknownStateIsANewerFormat(t *testing.T) {
	for _, form := range []byte{0, 5, 15, 0x75} {
		if _, _, err := parseRecord([]byte{form, 0, 2, 5, 1, 0}); !errors.Is(err, storage.ErrNewerFormat) {
			t.Errorf("form %#x: %v", form, err)
		}
	}
}

func TestRecordWithAFieldThatIsNeverWrittenIsDamaged(t *testing.T) {
	for _, b := range [][]byte{
		{0x11, 0, 2, 5, 1, 0, 0},                                                 // a window of 0
		{0x21, 0, 2, 5, 1, 0, 0},                                                 // an empty fingerprint
		{0x41, 0, 2, 5, 1, 0, 0},                                                 // no data
		{0x61, 0, 2, 5, 1, 0, 1, 'f', 0},                                         // a fingerprint, and no data
		{0x41, 0, 2, 5, 1, 0, 2, 'd'},                                            // truncated
		{0x41, 0, 2, 5, 1, 0, 1, 'd', 'd'},                                       // too long
		{0x03, 0, 2, 5, 1, 0},                                                    // leased without an owner
		{0x04, 0, 2, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2},                         // released, with an owner
		{0x11, 0, 2, 5, 1, 0, 255, 255, 255, 255, 255, 255, 255, 255, 127},       // a window of more than 292 years
		{0x09, 0, 2, 5, 1, 0, 2},                                                 // sent, without a window
		{0x19, 0, 2, 5, 1, 0, 1, 0},                                              // sent at 0
		{0x85, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0, 0, 0},                   // a partition of more than 31 bits
		{0x85, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}, // an offset of 64 bits
		{0x85, 0, 0, 0, 0, 0, 0},                                                 // without an offset
		{0x85, 0, 0, 0, 0, 0, 0, 0, 0},                                           // too long
	} {
		if r, _, err := parseRecord(b); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%x is read as %+v, %v", b, r, err)
		}
	}
}
