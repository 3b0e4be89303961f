package engine

import (
	"fmt"
	"time"
)

// Offset returns the next offset of a partition as the transaction sees it.
func (tx *Tx) Offset(p Position) (o Offset, found bool, err error) {
	if err := p.check(); err != nil {
		return Offset{}, false, err
	}
	value, found, err := tx.keys().get(p.stateKey(), nil)
	if err != nil || !found {
		return Offset{}, false, err
	}
	o, err = parseOffset(value)
	return o, err == nil, err
}

// SetOffset records the next offset to read of a partition. It commits with the claims and writes
// of the transaction.
func (tx *Tx) SetOffset(p Position, o Offset) error {
	if err := p.check(); err != nil {
		return err
	}
	if o.Next < 0 {
		return &ArgumentError{"offset", fmt.Sprintf("is %d", o.Next)}
	}
	return tx.keys().write(p.stateKey(), o.encode())
}

// DeleteOffset removes, as part of the transaction, the offset of a partition whose consumer group
// is no longer used; it is no error if there is none.
func (tx *Tx) DeleteOffset(p Position) error {
	if err := p.check(); err != nil {
		return err
	}
	return tx.keys().write(p.stateKey(), nil)
}

// SetHold and ReleaseHold are Engine.SetHold and Engine.ReleaseHold as part of the transaction.
func (tx *Tx) SetHold(name string, at time.Time) error {
	if err := checkHold(name, at); err != nil {
		return err
	}
	return tx.keys().write(holdKey(name), encodeHold(at))
}

// ReleaseHold removes a hold; it is no error if there is none.
func (tx *Tx) ReleaseHold(name string) error {
	if err := checkHold(name, time.Unix(0, 0)); err != nil {
		return err
	}
	return tx.keys().write(holdKey(name), nil)
}
