package replica

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/fuzztest"
)

var update = flag.Bool("update", false, "write the golden records again")

func tokenOf(b byte) (t token) {
	for i := range t {
		t[i] = b + byte(i)
	}
	return t
}

var goldenID = storage.Identity{UUID: [16]byte{1, 2, 3, 4, 5, 6, 0x47, 8, 0x89, 10, 11, 12, 13, 14, 15, 16}, Incarnation: 1, Seed: 0x1122334455667788}

const someWeek = 0x19cd4

// claimsOf returns claims with the engine's short records.
func claimsOf(scope string, n int) (claims []storage.ClaimWrite) {
	for i := range n {
		id := fmt.Appendf(nil, "%08x-89ab-cdef-0123-456789abcdef", i)
		s := shortRecord{0x83, 7, 200_000_000_000 + uint64(i/100), 1_000_000 + uint64(5*i)}
		claims = append(claims, storage.ClaimWrite{Key: storage.Bucket{Scope: scope, Week: someWeek}.AppendKey(nil, id), Record: s.appendTo(nil)})
	}
	return claims
}

func goldenBatch() *storage.Batch {
	b := &storage.Batch{Control: true, Claims: claimsOf("billing", 4)}
	b.Claims = append(b.Claims, storage.ClaimWrite{Key: storage.Bucket{Scope: "a\x00b", Week: someWeek}.AppendKey(nil, []byte("x"))})
	b.State = []storage.StateWrite{{Key: []byte("hkey"), Value: []byte("value")}, {Key: []byte("hgone")}, {Key: []byte("hempty"), Value: []byte{}}}
	b.Journal = journalOf(b.Claims, goldenID.Seed, func() uint64 { return 5 })
	return b
}

// The golden records are stored in topics: if this fails, existing changelogs can no longer be read.
func TestGoldenRecords(t *testing.T) {
	open := openRecord{goldenID, tokenOf(0x10), tokenOf(0x30)}
	batch := batchRecord{token: tokenOf(0x10), seq: 300, part: 1, parts: 2, body: appendBody(nil, goldenBatch(), goldenID.Seed)}
	p := position{topic: tokenOf(0x50), token: tokenOf(0x10), offset: 70_000, seq: 300}
	for name, record := range map[string][]byte{"open": open.encode(), "batch": batch.appendTo(nil), "position": p.encode()} {
		path := filepath.Join("testdata", name+"-v1.hex")
		if *update {
			if err := os.WriteFile(path, []byte(hex.EncodeToString(record)+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(record); got != strings.TrimSpace(string(want)) {
			t.Errorf("%s is encoded as\n%s, the format is\n%s", name, got, want)
		}
	}
	o, _, err := parseRecord(open.encode())
	if err != nil || *o != open {
		t.Errorf("%+v, %v", o, err)
	}
	_, b, err := parseRecord(batch.appendTo(nil))
	if err != nil || !reflect.DeepEqual(*b, batch) {
		t.Errorf("%+v, %v", b, err)
	}
	var r bodyReader
	back, err := r.read(b.body, goldenID.Seed)
	if err != nil || !sameBatch(back, goldenBatch()) {
		t.Errorf("%+v, %v", back, err)
	}
	if q, err := parsePosition(p.encode()); err != nil || q != p {
		t.Errorf("%+v, %v", q, err)
	}
}

func sameBatch(a, b *storage.Batch) bool {
	same := len(a.Claims) == len(b.Claims) && len(a.State) == len(b.State) && a.Control == b.Control && bytes.Equal(a.Journal, b.Journal)
	for i := 0; same && i < len(a.Claims); i++ {
		x, y := a.Claims[i], b.Claims[i]
		same = bytes.Equal(x.Key, y.Key) && bytes.Equal(x.Record, y.Record) && (x.Record == nil) == (y.Record == nil)
	}
	for i := 0; same && i < len(a.State); i++ {
		x, y := a.State[i], b.State[i]
		same = bytes.Equal(x.Key, y.Key) && bytes.Equal(x.Value, y.Value) && (x.Value == nil) == (y.Value == nil)
	}
	return same
}

func TestNewerVersionsAreRefused(t *testing.T) {
	open := openRecord{goldenID, tokenOf(1), token{}}
	record := open.encode()
	record[len(magic)] = 2
	for _, planted := range [][]byte{record, seal(record[:len(record)-crcSize]), append([]byte(magic), 2)} {
		if _, _, err := parseRecord(planted); !errors.Is(err, storage.ErrNewerFormat) {
			t.Errorf("%x: %v", planted, err)
		}
	}
	newer := (&position{topic: tokenOf(1), token: tokenOf(2), seq: 1}).encode()
	newer[0] = 2
	if _, err := parsePosition(newer); !errors.Is(err, storage.ErrNewerFormat) {
		t.Error(err)
	}
}

func TestDamagedRecordsAreDetected(t *testing.T) {
	open := openRecord{goldenID, tokenOf(1), token{}}
	batch := batchRecord{token: tokenOf(1), seq: 1, parts: 1, body: []byte("body")}
	for _, record := range [][]byte{open.encode(), batch.appendTo(nil)} {
		for i := range record {
			bad := bytes.Clone(record)
			bad[i] ^= 0x40
			o, b, err := parseRecord(bad)
			switch foreign := i < len(magic); {
			case foreign && (o != nil || b != nil || err != nil):
				t.Errorf("byte %d: a foreign record is %v %v, %v", i, o, b, err)
			case i == len(magic) && !errors.Is(err, storage.ErrNewerFormat), i > len(magic) && !errors.Is(err, ErrChangelogDamaged):
				t.Errorf("byte %d: %v", i, err)
			}
			if o, b, err := parseRecord(record[:i]); i >= len(magic) && !errors.Is(err, ErrChangelogDamaged) {
				t.Errorf("%d bytes: %v %v, %v", i, o, b, err)
			}
		}
	}
}

// A claim on a UUID takes its 16 bytes and hardly more.
func TestColumnsAreSmall(t *testing.T) {
	b := &storage.Batch{Claims: claimsOf("billing", 512)}
	b.Journal = journalOf(b.Claims, 9, func() uint64 { return 1 })
	if size := float64(len(appendBody(nil, b, 9))) / 512; size > 17.3 {
		t.Errorf("%.1f bytes a claim", size)
	}
}

// Random batches of all kinds are read as they were.
func TestBodiesAreReadBack(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	some := func(most int) []byte {
		b := make([]byte, rnd.IntN(most+1))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	var r bodyReader
	var body []byte
	for range 20000 {
		b := &storage.Batch{Control: rnd.IntN(2) == 0}
		for range rnd.IntN(4) {
			scope := []string{"s", "t\x00", strings.Repeat("long", 60)}[rnd.IntN(3)]
			claims := claimsOf(scope, rnd.IntN(20))
			for i := range claims {
				switch rnd.IntN(12) {
				case 0:
					claims[i].Record = nil
				case 1:
					claims[i].Record = some(30)
				case 2:
					claims[i].Key = append(claims[i].Key, some(5)...)
				case 3:
					s := shortRecord{0x80 | byte(rnd.Uint32()), rnd.Uint64(), rnd.Uint64() >> 24, rnd.Uint64()}
					claims[i].Record = s.appendTo(nil)
				}
			}
			b.Claims = append(b.Claims, claims...)
		}
		for range rnd.IntN(4) {
			w := storage.StateWrite{Key: some(20), Value: some(20)}
			if rnd.IntN(3) == 0 {
				w.Value = nil
			}
			b.State = append(b.State, w)
		}
		switch rnd.IntN(3) {
		case 0:
			b.Journal = some(100)
		case 1:
			b.Journal = journalOf(b.Claims, 9, func() uint64 { return rnd.Uint64() })
		}
		body = appendBody(body[:0], b, 9)
		back, err := r.read(body, 9)
		if err != nil || !sameBatch(back, b) {
			t.Fatalf("%+v\nis read as\n%+v, %v", b, back, err)
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add((&openRecord{goldenID, tokenOf(1), tokenOf(2)}).encode())
	f.Add((&batchRecord{token: tokenOf(1), seq: 3, part: 1, parts: 4, body: []byte("body")}).appendTo(nil))
	f.Fuzz(func(t *testing.T, unsealed []byte) {
		input := unsealed
		if n := len(input) - crcSize; n > 0 && input[n]%2 == 0 { // let it pass the checksum
			input = seal(bytes.Clone(input[:n]))
		}
		var o *openRecord
		var b *batchRecord
		fuzztest.Decodes(t, input, []error{ErrChangelogDamaged, storage.ErrNewerFormat},
			func() (err error) { o, b, err = parseRecord(input); return err },
			func() []byte {
				switch {
				case o != nil:
					return o.encode()
				case b != nil:
					return b.appendTo(nil)
				}
				return input
			})
	})
}

func FuzzBody(f *testing.F) {
	f.Add(appendBody(nil, goldenBatch(), 9))
	f.Add(appendBody(nil, &storage.Batch{Claims: claimsOf("s", 20), Journal: []byte("j")}, 9))
	f.Fuzz(func(t *testing.T, input []byte) {
		var b *storage.Batch
		fuzztest.Decodes(t, input, []error{ErrChangelogDamaged}, func() (err error) {
			b, err = new(bodyReader).read(input, 9)
			return err
		}, nil)
		if b == nil {
			return
		}
		var r bodyReader
		if back, err := r.read(appendBody(nil, b, 9), 9); err != nil || !sameBatch(back, b) {
			t.Fatalf("%+v is written and read as %+v, %v", b, back, err)
		}
	})
}

func FuzzPosition(f *testing.F) {
	f.Add((&position{topic: tokenOf(1), token: tokenOf(2), offset: 3, seq: 4}).encode())
	f.Fuzz(func(t *testing.T, input []byte) {
		var p position
		fuzztest.Decodes(t, input, []error{storage.ErrDamaged, storage.ErrNewerFormat}, func() (err error) {
			p, err = parsePosition(input)
			return err
		}, func() []byte { return p.encode() })
	})
}

// FuzzValidity reads records that are made of three bytes each: which member, what, and how.
func FuzzValidity(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 2, 0, 1, 3})
	f.Fuzz(func(t *testing.T, script []byte) {
		var v validity
		var known uint64
		for len(script) >= 3 {
			who, what, how := script[0], script[1], script[2]
			script = script[3:]
			var record []byte
			if what%4 == 0 {
				prev := v.token
				if how%4 == 1 {
					prev = tokenOf(how)
				}
				record = (&openRecord{goldenID, tokenOf(who), prev}).encode()
			} else {
				parts := uint64(what%3) + 1
				record = (&batchRecord{token: tokenOf(who), seq: known + 1 + uint64(how/16)%2, part: uint64(how) % parts, parts: parts, body: []byte{how}}).appendTo(nil)
			}
			before := v
			before.body = bytes.Clone(v.body)
			got, err := v.next(record)
			if err != nil {
				if !errors.Is(err, ErrChangelogDamaged) {
					t.Fatal(err)
				}
				return
			}
			// the same records give the same verdict
			if again, err := before.next(record); again != got || err != nil || before.token != v.token || before.seq != v.seq || before.part != v.part || before.void != v.void {
				t.Fatalf("%+v and %+v", before, v)
			}
			switch {
			case got == isBatch && (v.seq != known+1 || v.token != tokenOf(who)):
				t.Fatalf("batch %d of %v counts after batch %d, the token is %v", v.seq, who, known, v.token)
			case got == isBatch:
				known++
			case v.seq != known:
				t.Fatalf("batch %d without a verdict", v.seq)
			}
		}
	})
}
