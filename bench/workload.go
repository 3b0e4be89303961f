package bench

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

// A Mode says how a consumer claims.
type Mode string

// The modes: each claim commits before the event is handled; or it commits with the work and the
// offset.
const (
	Own  Mode = "own"
	Work Mode = "work"
)

// A Handler is what a consumer does with each new event.
type Handler string

// The handlers. The empty handler is NoopHandler.
const (
	NoopHandler     Handler = "noop"     // nothing
	DecodeHandler   Handler = "decode"   // decodes the JSON of the record
	BalancesHandler Handler = "balances" // decodes it, and moves an amount from one account to another
)

// A Workload is a handler and the data that it works on.
type Workload struct {
	Handler      Handler       `help:"noop: nothing. decode: decodes the JSON of the record. balances: decodes it, and moves money between two accounts in the transaction." enum:"noop,decode,balances" default:"noop"`
	Accounts     int           `help:"Accounts of the handler balances." default:"50"`
	PerPartition bool          `help:"As many accounts for each partition alone." name:"accounts-per-partition"`
	Add          bool          `help:"Move by Tx.Add, which commutes, instead of reading and writing the balances."`
	Slow         time.Duration `help:"Measure as well how fast the other partitions are while the handler of partition 0 takes so long for each event." placeholder:"DURATION"`
}

const maxAccounts = 100_000

func (w *Workload) complete(transactional bool) error {
	switch {
	case w.Accounts < 2 || w.Accounts > maxAccounts:
		return fmt.Errorf("%w: %d accounts: give 2 to %d", ErrUsage, w.Accounts, maxAccounts)
	case w.Handler == BalancesHandler && !transactional:
		return fmt.Errorf("%w: handler %s needs a transaction: choose mode work", ErrUsage, BalancesHandler)
	case (w.PerPartition || w.Add) && w.Handler != BalancesHandler:
		return fmt.Errorf("%w: accounts are those of handler %s: choose it", ErrUsage, BalancesHandler)
	case w.Slow < 0:
		return fmt.Errorf("%w: a handler that takes %v: give a duration from 0", ErrUsage, w.Slow)
	}
	return nil
}

// decodes reports whether the handler works on the decoded JSON of a record.
func (w *Workload) decodes() bool { return w.Handler == DecodeHandler || w.Handler == BalancesHandler }

func decodePayment(rec *kgo.Record) (*traffic.Payment, error) {
	p := new(traffic.Payment)
	if err := json.Unmarshal(rec.Value, p); err != nil {
		return nil, kafkaadapter.Permanent(err)
	}
	return p, nil
}

// handle is the handler. tx is nil in mode own.
func (w *Workload) handle(tx *engine.Tx, rec *kafkaadapter.Record) error {
	if w.Slow > 0 && rec.Partition == 0 {
		time.Sleep(w.Slow)
	}
	if !w.decodes() {
		return nil
	}
	p, ok := rec.Decoded.(*traffic.Payment)
	if !ok { // mode own
		var err error
		if p, err = decodePayment(rec.Record); err != nil {
			return err
		}
	}
	if w.Handler == DecodeHandler {
		return nil
	}
	if err := w.add(tx, w.account(rec.Partition, p.From), -p.Amount); err != nil {
		return err
	}
	return w.add(tx, w.account(rec.Partition, p.To), p.Amount)
}

func (w *Workload) add(tx *engine.Tx, account []byte, amount int64) error {
	if w.Add {
		return tx.Add(account, amount)
	}
	balance, err := readBalance(tx.Get, account)
	if err != nil {
		return err
	}
	return tx.Put(account, engine.EncodeInt64(balance+amount))
}

// account returns the key of an account. The key contains the partition unless all partitions share
// the account.
func (w *Workload) account(partition int32, n int) []byte {
	key := []byte("account/")
	if w.PerPartition {
		key = append(strconv.AppendInt(key, int64(partition), 10), '/')
	}
	return strconv.AppendInt(key, int64(n), 10)
}

// readBalance returns 0 for an account that was never written.
func readBalance(get reader, account []byte) (int64, error) {
	v, found, err := get(account)
	if err != nil || !found {
		return 0, err
	}
	return engine.DecodeInt64(v)
}

// The business state of a consumer with a store is, for each partition, a counter of each event. If
// anything in it is lost, counted twice or incomplete, counters, claims and offsets disagree.
// Counters of events with neighbouring numbers share a key, so that the work costs little compared
// with the claims.

// countersPerKey is the number of counters, one byte each, in the value of one key.
const countersPerKey = 128

func countersKey(partition int32, number uint64) []byte {
	key := binary.BigEndian.AppendUint32([]byte("handled/"), uint32(partition))
	return binary.BigEndian.AppendUint64(key, number/countersPerKey)
}

// addToState does the work for one event in the transaction that claims the event.
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

// A reader reads an application key, in a transaction or outside one.
type reader func(key []byte) (value []byte, found bool, err error)

// readCounters returns a copy of the value that has a partition's counter of the event.
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
