package kafkaadapter

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
)

// A handler that writes a key of the adapter, such as the owner of its partition, gets an error that
// names the owner, and its record fails. It may read these keys.
func TestHandlersCannotWriteTheKeysOfTheAdapter(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b")
	key := partitionKey(keyOwner, r.position(0))
	var got []error
	m := r.start(t, r.work(1, func(_ context.Context, tx *engine.Tx, rec *Record) error {
		if string(rec.Event.ID) == "b" {
			return nil
		}
		if _, found, err := tx.Get(key); err != nil || !found {
			t.Errorf("reading the owner: %v, %v", found, err)
		}
		got = []error{
			tx.Put(key, encodeOwner(owner.Record{})), tx.Delete(key), tx.Add(key, 1), tx.Put([]byte("\x00hapax/new"), nil),
			tx.Put([]byte("\x00hapax"), nil), tx.Put([]byte("hapax/kafka\x00"), nil),
		}
		return errors.Join(got...)
	}))
	r.untilStored(t, 0, 2)
	m.stop(t)
	r.checkOnce(t, "b")
	for i, err := range got[:4] {
		argument := (*engine.ArgumentError)(nil)
		if !errors.As(err, &argument) || i < 3 && !strings.Contains(err.Error(), "belong to package kafkaadapter") {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if slices.ContainsFunc(got[4:], func(err error) bool { return err != nil }) {
		t.Errorf("other keys: %v", got[4:])
	}
	if dead := values(r.letters(t, 1)[0]); !strings.Contains(dead["hapax_dlt_error"], "kafkaadapter") {
		t.Errorf("dead letter %q", dead)
	}
}
