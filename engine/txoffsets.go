package engine

import (
	"fmt"
	"time"
)

// Offset returns the offset of a partition, including the transaction's own writes.
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

// SetOffset records the next offset to read in a partition. It commits with the claims and writes
// of the transaction. It returns an ArgumentError for an offset that a running consumer of
// kafkaadapter owns: the consumer writes it with each batch.
func (tx *Tx) SetOffset(p OffsetKey, o Offset) error { return asApplication(tx).SetOffset(p, o) }

// DeleteOffset removes the offset of a partition, if there is one. Use it for consumer groups that
// are no longer used. It is part of the transaction.
func (tx *Tx) DeleteOffset(p OffsetKey) error { return asApplication(tx).DeleteOffset(p) }

// SetHold is Engine.SetHold as part of the transaction.
func (tx *Tx) SetHold(name string, at time.Time) error { return asApplication(tx).SetHold(name, at) }

// ReleaseHold is Engine.ReleaseHold as part of the transaction.
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
