package names

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// docs/format.md describes the golden bytes below. They are stored forever.

const aWeek weekbucket.Week = 0x19cd4

var errFull = errors.New("full")

func wantBytes(t *testing.T, got []byte, want string) {
	t.Helper()
	if want = strings.ReplaceAll(want, " ", ""); hex.EncodeToString(got) != want {
		t.Errorf("encoded as\n%x, the format is\n%s", got, want)
	}
}

func TestGoldenNames(t *testing.T) {
	n := New(errFull)
	for i := range 130 {
		ref, writes, err := n.ref(fmt.Sprint("name", i), asTopic, aWeek, nil)
		if err != nil || ref != uint64(i) || len(writes) != 2 {
			t.Fatal(ref, writes, err)
		}
		switch i {
		case 0:
			wantBytes(t, writes[0].Key, "6e 6e616d6530")
			wantBytes(t, writes[0].Value, "00")
		case 129:
			wantBytes(t, writes[0].Value, "8101")
			wantBytes(t, writes[1].Key, "75 00019cd4 0081")
			wantBytes(t, writes[1].Value, "")
		}
	}
	if _, writes, _ := n.ref("name7", asTopic, aWeek, nil); len(writes) != 0 {
		t.Error("a known name is written again")
	}
	if _, writes, _ := n.ref("name7", asTopic, aWeek+1, nil); len(writes) != 1 {
		t.Error("the use of a known name is not written for another week")
	} else {
		wantBytes(t, writes[0].Key, "75 00019cd5 0007")
	}
	for i, want := range []string{"73", ""} { // as a scope only, and then as a topic too
		_, writes, _ := n.ref("name8", role(i == 0), aWeek+1, nil)
		if len(writes) != 1 {
			t.Fatal(i, writes)
		}
		wantBytes(t, writes[0].Key, "75 00019cd5 0008")
		wantBytes(t, writes[0].Value, want)
	}
	if _, writes, _ := n.ref("name8", asScope, aWeek+1, nil); len(writes) != 0 {
		t.Error("a known use is written again")
	}
}

// A number that no name has is the next one.
func TestGapInTheTableOfNames(t *testing.T) {
	n := New(errFull)
	if err := errors.Join(n.load("a", []byte{0}), n.load("b", []byte{2}), n.check()); err != nil {
		t.Fatal(err)
	}
	if ref, _, err := n.ref("c", asTopic, aWeek, nil); ref != 1 || err != nil {
		t.Errorf("the next name gets number %d, %v", ref, err)
	}
}

func TestDamagedTableOfNamesIsRejected(t *testing.T) {
	for _, c := range []struct {
		what    string
		entries [][2]string
	}{
		{"two names with one number", [][2]string{{"a", "\x00"}, {"b", "\x00"}}},
		{"a name without a number", [][2]string{{"a", ""}}},
		{"bytes after the number", [][2]string{{"a", "\x00\x00"}}},
		{"a number cut off", [][2]string{{"a", "\x80"}}},
		{"a number too high", [][2]string{{"a", "\x80\x80\x04"}}},
		{"an empty name", [][2]string{{"", "\x00"}}},
		{"a number longer than need be", [][2]string{{"a", "\x80\x00"}}},
	} {
		n := New(errFull)
		var err error
		for _, e := range c.entries {
			err = errors.Join(err, n.load(e[0], []byte(e[1])))
		}
		if err = errors.Join(err, n.check()); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
