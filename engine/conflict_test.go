package engine_test

import (
	"errors"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
)

// A conflict names the application key, however it was read and whenever the conflict is found.
func TestAConflictNamesItsKey(t *testing.T) {
	scan := func(tx *engine.Tx) (err error) {
		for _, err = range tx.Scan(engine.Range{Prefix: []byte("k")}) {
			if err != nil {
				break
			}
		}
		return err
	}
	get := func(tx *engine.Tx) error {
		_, _, err := tx.Get([]byte("key"))
		return err
	}
	offset := engine.OffsetKey{Group: "g", Topic: "t"}
	for name, c := range map[string]struct {
		read, readAgain func(tx *engine.Tx) error
		write           func(tx *engine.Tx) error
		want            string
	}{
		"get":            {read: get, want: "key"},
		"get too late":   {readAgain: get, want: "key"},
		"scan":           {read: scan, want: "key"},
		"scan too late":  {readAgain: scan, want: "key"},
		"get in a part":  {readAgain: func(tx *engine.Tx) error { return inPart(tx, get) }, want: "key"},
		"no application": {read: func(tx *engine.Tx) error { _, _, err := tx.Offset(offset); return err }, write: func(tx *engine.Tx) error { return tx.SetOffset(offset, engine.Offset{Next: 7}) }},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := openMem(t, engine.Options{})
			err := e.Update(ctx, func(tx *engine.Tx) error {
				if c.read != nil {
					if err := c.read(tx); err != nil {
						return err
					}
				}
				update(t, e, func(tx *engine.Tx) {
					mustPut(t, tx, "key", "changed")
					if c.write != nil {
						if err := c.write(tx); err != nil {
							t.Error(err)
						}
					}
				})
				if c.readAgain != nil {
					return c.readAgain(tx)
				}
				return tx.Put([]byte("other"), nil)
			})
			if !errors.Is(err, engine.ErrConflict) {
				t.Fatal(err)
			}
			e2, ok := errors.AsType[*engine.ConflictError](err)
			if ok != (c.want != "") || ok && string(e2.Key) != c.want {
				t.Errorf("the conflict is %#v", err)
			}
		})
	}
}

func inPart(tx *engine.Tx, fn func(tx *engine.Tx) error) error {
	p, err := driver.BeginSubTx(tx)
	if err != nil {
		return err
	}
	return errors.Join(fn(p.Tx()), p.Discard())
}
