package main

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

// A handler needs no broker to be tested: it is called in a transaction of an engine whose store is
// in memory.
func TestHandlerAlone(t *testing.T) {
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()

	handle := func(value string) error {
		return eng.Update(t.Context(), func(tx *engine.Tx) error {
			rec := &kafkaadapter.Record{Record: &kgo.Record{Topic: "texts", Value: []byte(value), Timestamp: time.Now()}}
			return count(t.Context(), tx, rec)
		})
	}
	if err := handle("to be"); err != nil {
		t.Fatal(err)
	}
	if err := handle("be \xff"); err == nil {
		t.Error("a text that is no text was counted")
	}
	var n int64
	if err := eng.Update(t.Context(), func(tx *engine.Tx) (err error) {
		n, err = words(tx, []byte("be"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if n != 1 { // the failed transaction counted nothing
		t.Errorf(`"be" was counted %d times, want 1`, n)
	}
}
