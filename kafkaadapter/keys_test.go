package kafkaadapter

import (
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
)

var aPosition = engine.OffsetKey{Group: "billing", Topic: "orders", Partition: 258}

var anOwner = owner.Record{Token: [16]byte{1, 15: 16}, Width: 258, Tries: owner.Attempts{Offset: 4711, N: 259}}

// Keys and values are stored forever.
func TestKeysAreGolden(t *testing.T) {
	const prefix = "\x00hapax/kafka\x00"
	const partition = "\x00\x07billing\x00\x06orders\x00\x00\x01\x02"
	for _, tt := range []struct {
		what string
		got  []byte
		want string
	}{
		{"owner's key", partitionKey(keyOwner, aPosition), prefix + "o" + partition},
		{"letter's key", letterKey(aPosition), prefix + "l" + partition},
		{"scope's key", scopeKey("invoices"), prefix + "sinvoices"},
		{"owner", encodeOwner(anOwner), "\x01\x01" + strings.Repeat("\x00", 14) + "\x10\x00\x00\x01\x02" + "\x00\x00\x00\x00\x00\x00\x12\x67\x00\x00\x01\x03"},
	} {
		if string(tt.got) != tt.want {
			t.Errorf("%s is %q, want %q", tt.what, tt.got, tt.want)
		}
	}
}

func TestStoredOwnerIsReadBack(t *testing.T) {
	if got, err := parseOwner(encodeOwner(anOwner)); err != nil || got != anOwner {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestStoredBytesOfAnotherFormAreRejected(t *testing.T) {
	whole := encodeOwner(anOwner)
	for _, b := range [][]byte{nil, {1}, append(whole[:len(whole):len(whole)], 0), append([]byte{2}, whole[1:]...)} {
		if o, err := parseOwner(b); err == nil {
			t.Errorf("%x is an owner: %+v", b, o)
		}
	}
}
