package kafkaadapter

import (
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine"
)

var aPosition = engine.OffsetKey{Group: "billing", Topic: "orders", Partition: 258}

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
		{"attempts' key", partitionKey(keyAttempts, aPosition), prefix + "a" + partition},
		{"letter's key", letterKey(aPosition), prefix + "l" + partition},
		{"secret's key", secretKey(), prefix + "k"},
		{"scope's key", scopeKey("invoices"), prefix + "sinvoices"},
		{"owner", owner{[16]byte{1, 15: 16}, 258}.encode(), "\x01\x01" + strings.Repeat("\x00", 14) + "\x10\x00\x00\x01\x02"},
		{"attempts", attempts{4711, 258}.encode(), "\x01\x00\x00\x00\x00\x00\x00\x12\x67\x00\x00\x01\x02"},
	} {
		if string(tt.got) != tt.want {
			t.Errorf("%s is %q, want %q", tt.what, tt.got, tt.want)
		}
	}
}

func TestStoredOwnersAndAttemptsAreReadBack(t *testing.T) {
	o := owner{[16]byte{1, 15: 16}, 258}
	if got, err := parseOwner(o.encode()); err != nil || got != o {
		t.Errorf("%+v, %v", got, err)
	}
	a := attempts{4711, 258}
	if got, err := parseAttempts(a.encode()); err != nil || got != a {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestStoredBytesOfAnotherFormAreRejected(t *testing.T) {
	for _, b := range [][]byte{nil, {1}, append(owner{}.encode(), 0), append([]byte{2}, owner{}.encode()[1:]...)} {
		if o, err := parseOwner(b); err == nil {
			t.Errorf("%x is an owner: %+v", b, o)
		}
	}
	for _, b := range [][]byte{nil, {1}, append(attempts{}.encode(), 0), append([]byte{2}, attempts{}.encode()[1:]...)} {
		if a, err := parseAttempts(b); err == nil {
			t.Errorf("%x are attempts: %+v", b, a)
		}
	}
}
