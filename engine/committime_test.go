package engine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

var timesSpace = keyspace.New("times")

func commitTime(t testing.TB, e *engine.Engine, key string) time.Time {
	t.Helper()
	value, found, err := driver.In(e, timesSpace).Get(ctx, []byte(key))
	if err != nil || !found {
		t.Fatal(key, found, err)
	}
	micros, err := engine.DecodeInt64(value)
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMicro(micros).UTC()
}

// The time is that of the commit, not of the call, and never decreases from commit to commit.
func TestPutCommitTime(t *testing.T) {
	e, _, c := openAt(t, engine.Options{})
	stamp := func(key string, during func(tx *engine.Tx) error) {
		t.Helper()
		err := e.Update(ctx, func(tx *engine.Tx) error {
			times := driver.TxIn(tx, timesSpace)
			return errors.Join(times.PutCommitTime([]byte(key)), times.PutCommitTime([]byte(key)), during(tx))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := func(key string, want time.Time) {
		t.Helper()
		if got := commitTime(t, e, key); !got.Equal(want) {
			t.Errorf("%s was committed at %v, want %v", key, got, want)
		}
	}
	stamp("a", func(*engine.Tx) error {
		c.set(noon.Add(time.Minute))
		stamp("b", func(*engine.Tx) error { return nil })
		c.set(noon.Add(2 * time.Minute))
		return nil
	})
	want("b", noon.Add(time.Minute))
	want("a", noon.Add(2*time.Minute))
	c.set(noon)
	stamp("c", func(*engine.Tx) error { return nil })
	want("c", noon.Add(2*time.Minute))
	stamp("d", func(tx *engine.Tx) error { return driver.TxIn(tx, timesSpace).Put([]byte("d"), engine.EncodeInt64(7)) })
	want("d", time.UnixMicro(7)) // a later write wins
	stamp("e", func(tx *engine.Tx) error { return driver.TxIn(tx, timesSpace).Delete([]byte("e")) })
	if _, found, err := driver.In(e, timesSpace).Get(ctx, []byte("e")); found || err != nil {
		t.Error(found, err)
	}
	if err := e.Update(ctx, func(tx *engine.Tx) error { return driver.TxIn(tx, timesSpace).Add([]byte("c"), 1) }); err != nil {
		t.Error(err)
	}
	want("c", noon.Add(2*time.Minute).Add(time.Microsecond)) // sums use the written time
}

// A joined part adds its commit times, and one that fails adds none.
func TestPutCommitTimeInParts(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{})
	err := e.Update(ctx, func(tx *engine.Tx) error {
		for i, end := range []func(driver.SubTx) error{(driver.SubTx).Join, (driver.SubTx).Join, (driver.SubTx).Discard} {
			p, err := driver.BeginSubTx(tx)
			if err != nil {
				return err
			}
			if err := driver.TxIn(p.Tx(), timesSpace).PutCommitTime([]byte{"kkl"[i]}); err != nil {
				return err
			}
			if err := end(p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := commitTime(t, e, "k"); !got.Equal(noon) {
		t.Error(got)
	}
	if _, found, err := driver.In(e, timesSpace).Get(ctx, []byte("l")); found || err != nil {
		t.Error(found, err)
	}
	if err := driver.TxIn((*engine.Tx)(nil), timesSpace).PutCommitTime([]byte("k")); !errors.Is(err, engine.ErrNoTransaction) {
		t.Error(err)
	}
	var refused *engine.ArgumentError
	if err := e.Update(ctx, func(tx *engine.Tx) error { return driver.TxIn(tx, timesSpace).PutCommitTime(nil) }); !errors.As(err, &refused) {
		t.Error(err)
	}
}
