package filters

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/fuzztest"
)

func TestGoldenJournalEntry(t *testing.T) {
	var w Entry
	one, two := Bucket{1, aWeek}, Bucket{300, aWeek + 1}
	w.add(one, signPut, 0x0102030405060708)
	w.add(two, signRemoved, 0xff)
	w.add(one, signPut, 2)
	entry := w.AppendTo(nil)
	wantBytes(t, entry, "02 01 00019cd4 01 0102030405060708 0000000000000002"+"01 ac02 00019cd5 00 00000000000000ff")
	var got []string
	err := readEntry(entry, func(id runID, hashes []byte) { got = append(got, fmt.Sprint(id, appendHashes(nil, hashes))) })
	want := []string{fmt.Sprint(runID{one, 1}, []uint64{0x0102030405060708, 2}), fmt.Sprint(runID{two, 0}, []uint64{255})}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("read back as %v, %v", got, err)
	}
	w.Reset()
	w.add(two, signDropped, 0)
	wantBytes(t, w.AppendTo(nil), "01 ac02 00019cd5 02 0000000000000000")
	for _, damaged := range []string{"01 ac02 00019cd5 02 0000000000000001", "02 ac02 00019cd5 02 0000000000000000 0000000000000000", "01 ac02 00019cd5 03 0000000000000000"} {
		b, err := hex.DecodeString(strings.ReplaceAll(damaged, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if err := readEntry(b, func(runID, []byte) {}); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("%s: %v", damaged, err)
		}
	}
	w.Reset()
	if b := w.AppendTo(nil); len(b) != 0 {
		t.Errorf("an empty entry is %x", b)
	}
}

func FuzzReadEntry(f *testing.F) {
	var w Entry
	w.add(Bucket{1, aWeek}, signPut, 1)
	w.add(Bucket{1, aWeek}, signPut, 2)
	w.add(Bucket{300, aWeek}, signRemoved, 3)
	f.Add(w.AppendTo(nil))
	f.Add([]byte{})
	f.Add([]byte("\xff\xff\xff\xff\x07\x01\x00\x01\x9c\xd4\x01"))
	f.Fuzz(func(t *testing.T, entry []byte) {
		// An entry lists each bucket once; an entry that repeats one is decoded, and is encoded
		// with its parts joined.
		var runs []journalRun
		read := func(b []byte) error {
			runs = nil
			return readEntry(b, func(id runID, hashes []byte) {
				for i := range runs {
					if runs[i].runID == id {
						runs[i].hashes = appendHashes(runs[i].hashes, hashes)
						return
					}
				}
				runs = append(runs, journalRun{id, appendHashes(nil, hashes)})
			})
		}
		fuzztest.Decodes(t, entry, []error{storage.ErrDamaged}, func() error { return read(entry) }, nil)
		want := runs
		var w Entry
		for _, r := range runs {
			for _, h := range r.hashes {
				w.add(r.runID.bucket, r.runID.sign, h)
			}
		}
		again := w.AppendTo(nil)
		if err := read(again); err != nil || fmt.Sprint(runs) != fmt.Sprint(want) || len(again) > len(entry) {
			t.Fatalf("%x is read as %v, written as %x, and that read as %v, %v", entry, want, again, runs, err)
		}
	})
}
