package engine_test

import (
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

type nilObserver struct{ engine.Observer }

func TestOpenRefusesNil(t *testing.T) {
	for name, store := range map[string]storage.Store{
		"nil": nil, "of Pebble": (*pebble.Store)(nil), "of bbolt": (*bolt.Store)(nil), "in memory": (*storetest.Mem)(nil),
	} {
		e, err := engine.Open(store, engine.Options{})
		if e != nil || err == nil || !strings.Contains(err.Error(), "pebble.Open or bolt.Open") {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{Observer: (*nilObserver)(nil)})
	if err == nil || !strings.Contains(err.Error(), "Options.Observer") {
		t.Errorf("an observer: %v", err)
	}
}
