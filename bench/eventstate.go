package bench

import (
	"encoding/binary"
	"fmt"

	"github.com/hapax-dev/hapax/engine"
)

// The business state of a consumer with a store is, for each partition, a counter of each event.
// Whatever is lost, doubled or half there makes counters, claims and offsets disagree. Counters of
// events with neighbouring numbers share a key, so that the work is not much more than the claims.

// countersPerKey counters of a byte each are the value of one key.
const countersPerKey = 128

func countersKey(partition int32, number uint64) []byte {
	key := binary.BigEndian.AppendUint32([]byte("handled/"), uint32(partition))
	return binary.BigEndian.AppendUint64(key, number/countersPerKey)
}

// addToState does the work for one event, as part of the transaction that claims it.
func addToState(tx *engine.Tx, partition int32, number uint64) error {
	counters, err := readCounters(tx.Get, partition, number)
	if err != nil {
		return err
	}
	if at := &counters[number%countersPerKey]; *at < 255 {
		*at++
	}
	return tx.Put(countersKey(partition, number), counters)
}

// A reader reads an application key: in a transaction, or outside.
type reader func(key []byte) (value []byte, found bool, err error)

// readCounters returns a partition's counters of the event and those next to it, as a copy.
func readCounters(get reader, partition int32, number uint64) ([]byte, error) {
	v, found, err := get(countersKey(partition, number))
	if err == nil && !found {
		v = make([]byte, countersPerKey)
	}
	if err == nil && len(v) != countersPerKey {
		err = fmt.Errorf("the counters of event %d of partition %d have %d bytes", number, partition, len(v))
	}
	return v, err
}
