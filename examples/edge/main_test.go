package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
)

func TestARepeatedLineIsADuplicate(t *testing.T) {
	store, err := bolt.Open(filepath.Join(t.TempDir(), "claims"), bolt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	eng, err := engine.Open(store, engine.Options{RetentionWeeks: engine.KeepAll})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	in := "a 2026-03-04T12:00:00Z\nb 2026-03-04T12:00:00Z\na 2026-03-04T12:00:00Z\n"
	var out strings.Builder
	if err := judge(context.Background(), eng, strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	if want := "claimed a\nclaimed b\nduplicate a\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}
