package engine

import (
	"encoding/binary"

	"github.com/hapax-dev/hapax/internal/entry"
)

// Produce writes an outgoing message in the batch of the transaction. If the transaction commits,
// the relay of package outbox publishes the message; otherwise it is never published. Produce
// returns the message's id, which the published record has in a header. A rollback to an earlier
// savepoint undoes Produce. The message's slices are copied. If the outbox is full, Produce returns
// ErrOutboxFull.
func (tx *Tx) Produce(m Message) (id string, err error) {
	if err := m.check(); err != nil {
		return "", err
	}
	if err := tx.lock(); err != nil {
		return "", err
	}
	now := tx.e.core.now()
	tx.status.mu.Unlock()
	en, err := m.entry(now)
	if err != nil {
		return "", err
	}
	if err := tx.e.outbox.makeRoom(tx.e.core, en.Bytes()); err != nil {
		return "", err
	}
	key := make([]byte, 0, 32)
	key = append(key, stateProduced)
	if en.Due > en.Created {
		key = append(key, entry.DelayedPrefix...)
	} else {
		key = append(key, entry.ReadyPrefix...)
	}
	key = binary.BigEndian.AppendUint64(key, uint64(en.Due))
	key = binary.BigEndian.AppendUint64(key, tx.e.outbox.names.Add(1))
	key = binary.BigEndian.AppendUint64(key, en.Bytes())
	return en.ID, tx.state.write(key, en.Append(make([]byte, 0, en.Size())))
}
