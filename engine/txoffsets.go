package engine

import (
	"fmt"
	"time"
)

// Offset returns the next offset of a partition as the transaction sees it.
func (tx *Tx) Offset(p OffsetKey) (o Offset, found bool, err error) {
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
// of the transaction. An offset that a running consumer of kafkaadapter owns is an ArgumentError: its
// consumer writes it with each batch.
func (tx *Tx) SetOffset(p OffsetKey, o Offset) error { return asApplication(tx).SetOffset(p, o) }

// DeleteOffset removes, as part of the transaction, the offset of a partition whose consumer group
// is no longer used; it is no error if there is none.
func (tx *Tx) DeleteOffset(p OffsetKey) error { return asApplication(tx).DeleteOffset(p) }

// SetHold and ReleaseHold are Engine.SetHold and Engine.ReleaseHold as part of the transaction.
func (tx *Tx) SetHold(name string, at time.Time) error { return asApplication(tx).SetHold(name, at) }

// ReleaseHold removes a hold; it is no error if there is none.
func (tx *Tx) ReleaseHold(name string) error { return asApplication(tx).ReleaseHold(name) }

// SetOffset is Tx.SetOffset.
func (o ownerTx) SetOffset(p OffsetKey, next Offset) error {
	if next.Next < 0 {
		return &ArgumentError{"offset", fmt.Sprintf("is %d", next.Next)}
	}
	return o.writeOffset(p, next.encode())
}

// DeleteOffset is Tx.DeleteOffset.
func (o ownerTx) DeleteOffset(p OffsetKey) error { return o.writeOffset(p, nil) }

func (o ownerTx) writeOffset(p OffsetKey, value []byte) error {
	if err := p.check(); err != nil {
		return err
	}
	if o.tx != nil {
		if err := o.tx.e.core.ownerships.checkOwnOffset(o.by, p); err != nil {
			return err
		}
	}
	return o.tx.keys().write(p.stateKey(), value)
}

// SetHold is Tx.SetHold.
func (o ownerTx) SetHold(name string, at time.Time) error {
	if err := checkHold(name, at); err != nil {
		return err
	}
	return o.writeHold(name, encodeHold(at))
}

// ReleaseHold is Tx.ReleaseHold.
func (o ownerTx) ReleaseHold(name string) error {
	if err := checkHold(name, time.Unix(0, 0)); err != nil {
		return err
	}
	return o.writeHold(name, nil)
}

func (o ownerTx) writeHold(name string, value []byte) error {
	if o.tx != nil {
		if err := o.tx.e.core.ownerships.checkOwnHold(o.by, name); err != nil {
			return err
		}
	}
	return o.tx.keys().write(holdKey(name), value)
}
