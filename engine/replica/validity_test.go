package replica

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A script is records, a word each: O and a member's letter is its open after the newest one,
// b and a letter, a number and the part of the parts is a batch.
type script struct {
	tokens map[byte]token
	newest token
	id     storage.Identity
}

func (s *script) record(t *testing.T, word string) []byte {
	t.Helper()
	switch word[0] {
	case 'O', 'I', 'L': // I: with another identity; L: as if nothing had been read
		o := openRecord{s.id, s.tokens[word[1]], s.newest}
		switch word[0] {
		case 'I':
			o.id.Seed++
		case 'L':
			o.prev = token{}
		}
		if len(word) > 2 { // after another one's
			o.prev = s.tokens[word[2]]
		}
		return o.encode()
	case 'f':
		return []byte("foreign")
	}
	b := batchRecord{token: s.tokens[word[1]], parts: 1, body: []byte(word)}
	if _, err := fmt.Sscanf(word[2:]+".0/1", "%d.%d/%d", &b.seq, &b.part, &b.parts); err != nil {
		t.Fatal(word, err)
	}
	return b.appendTo(nil)
}

func TestValidity(t *testing.T) {
	for _, c := range []struct{ rule, records, want string }{
		{"a batch of the newest open counts", "Oa ba1 ba2", "open batch batch"},
		{"one of an earlier open does not", "Oa ba1 Ob ba2 bb2", "open batch open void batch"},
		{"an open must name the newest one", "Oa Ob Oca bb1 bc1", "open open void batch void"},
		{"a late copy of an open is void", "Oa Ob La Oba bb1", "open open void void batch"},
		{"an open that lands twice counts once", "Oa La ba1", "open void batch"},
		{"the first identity counts", "Oa Ib ba1 bb1", "open void batch void"},
		{"the first open of two counts", "Oa Lb ba1", "open void batch"},
		{"a log that begins with an open that follows one was trimmed", "Oab", "damaged"},
		{"a log that begins with a batch was trimmed", "ba1", "damaged"},
		{"a log that begins with a later batch was trimmed", "Oa ba2", "open damaged"},
		{"a gap is damage", "Oa ba1 ba3", "open batch damaged"},
		{"a gap of an earlier token is void", "Oa ba1 Ob ba3 bb2", "open batch open void batch"},
		{"a batch that lands twice counts once", "Oa ba1 ba1 ba2 ba1 ba2", "open batch void batch void void"},
		{"parts make a batch", "Oa ba1.0/3 ba1.1/3 ba1.2/3 ba2", "open part part batch batch"},
		{"a part that lands twice counts once", "Oa ba1.0/2 ba1.0/2 ba1.1/2 ba1.0/2 ba1.1/2 ba2", "open part void batch void void batch"},
		{"a part without its predecessor ends the token", "Oa ba1.0/3 ba1.2/3 ba1.1/3 ba2 ba1 Ob bb1", "open part void void void void open batch"},
		{"a first part that is missing ends the token", "Oa ba1.1/2 ba1", "open void void"},
		{"an open ends a batch without its last part", "Oa ba1.0/2 Ob ba1.1/2 bb1.0/2 bb1.1/2", "open part open void part batch"},
		{"parts of two lengths are damage", "Oa ba1.0/2 ba1.1/3", "open part damaged"},
		{"a foreign record is void", "f Oa f ba1.0/2 f ba1.1/2", "void open void part void batch"},
	} {
		s := script{tokens: map[byte]token{'a': tokenOf(1), 'b': tokenOf(2), 'c': tokenOf(3)}, id: goldenID}
		var v validity
		var got []string
		for _, word := range strings.Fields(c.records) {
			verdict, err := v.next(s.record(t, word))
			s.newest = v.token
			if err != nil {
				if !errors.Is(err, ErrChangelogDamaged) {
					t.Errorf("%s: %v", c.rule, err)
				}
				got = append(got, "damaged")
				break
			}
			got = append(got, [...]string{"void", "open", "part", "batch"}[verdict])
			if whole := word[:min(3, len(word))]; verdict == isBatch && !strings.HasPrefix(string(v.body), whole) {
				t.Errorf("%s: the body of %s is %q", c.rule, word, v.body)
			}
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: %s\n got %s\nwant %s", c.rule, c.records, got, c.want)
		}
	}
}

// A batch of parts has the bodies of its parts, and of no other.
func TestPartsAreJoined(t *testing.T) {
	s := script{tokens: map[byte]token{'a': tokenOf(1)}, id: goldenID}
	var v validity
	for _, word := range strings.Fields("Oa ba1.0/2 ba1.0/2 ba1.1/2") {
		if _, err := v.next(s.record(t, word)); err != nil {
			t.Fatal(err)
		}
		s.newest = v.token
	}
	if string(v.body) != "ba1.0/2ba1.1/2" {
		t.Errorf("%q", v.body)
	}
}
