package bench

import (
	"encoding/binary"
	"fmt"

	"github.com/hapax-dev/hapax/engine"
)

// The business state of a consumer with a store: for each partition a counter of each event, and
// how many events it has handled with the sum of their fingerprints. Lost, doubled or partial work
// makes them disagree. Counters of adjacent events share a key, so that the work is not much more
// than the claims.

// countersPerKey counters of a byte each are the value of one key.
const countersPerKey = 128

func countersKey(partition int32, number uint64) []byte {
	key := binary.BigEndian.AppendUint32([]byte("handled/"), uint32(partition))
	return binary.BigEndian.AppendUint64(key, number/countersPerKey)
}

func partSumKey(partition int32) []byte {
	return binary.BigEndian.AppendUint32([]byte("sum/"), uint32(partition))
}

// A partSum is kept for each partition.
type partSum struct{ Events, Sum uint64 }

func (s *partSum) add(number, count uint64) {
	s.Events += count
	s.Sum += count * fingerprint(number)
}

func fingerprint(number uint64) uint64 { return mix(number ^ 0xF1A6E5) }

// addToState does the work for one event, as part of the transaction that claims it.
func addToState(tx *engine.Tx, partition int32, number uint64) error {
	counters, err := readCounters(tx.Get, partition, number)
	if err != nil {
		return err
	}
	if at := &counters[number%countersPerKey]; *at < 255 {
		*at++
	}
	if err := tx.Put(countersKey(partition, number), counters); err != nil {
		return err
	}
	s, err := readPartSum(tx.Get, partition)
	if err != nil {
		return err
	}
	s.add(number, 1)
	return tx.Put(partSumKey(partition), binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, s.Events), s.Sum))
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

func readPartSum(get reader, partition int32) (s partSum, err error) {
	v, found, err := get(partSumKey(partition))
	if err != nil || !found {
		return s, err
	}
	if len(v) != 16 {
		return s, fmt.Errorf("the sum of partition %d has %d bytes", partition, len(v))
	}
	return partSum{binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])}, nil
}
