package bolt

import (
	"fmt"
	"testing"

	"github.com/hapax-dev/hapax/engine"
)

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	dir += "/s"
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := engine.Bucket{Scope: "a", Week: 100}
	for seq := uint64(1); seq <= 20; seq++ {
		var ws []engine.ClaimWrite
		for i := range 300 {
			ws = append(ws, engine.ClaimWrite{Key: b.AppendKey(nil, fmt.Appendf(nil, "%d-%d", i, seq)), Record: []byte("r")})
		}
		if _, err := s.Apply(&engine.Batch{Seq: seq, Claims: ws, Journal: []byte("j")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err = Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(s.LastSeq())
	s.Close()
}
