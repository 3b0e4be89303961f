package bench

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

// A Handler is what a consumer does with each new event.
type Handler string

// The handlers. The empty handler is NoopHandler.
const (
	NoopHandler     Handler = "noop"     // nothing
	DecodeHandler   Handler = "decode"   // decodes the JSON of the record
	BalancesHandler Handler = "balances" // decodes it, and moves an amount from one account to another
)

// A Workload is a handler and what it works on.
type Workload struct {
	Handler Handler
	// Accounts is the number of accounts that BalancesHandler moves money between; 0 =
	// DefaultAccounts.
	Accounts int
	// PerPartition gives each partition that many accounts of its own.
	PerPartition bool
	// Add moves by Tx.Add instead of reading and writing the balance.
	Add bool
	// Slow, if not 0, is how long the handler of partition 0 takes for each event. Then a run also
	// measures how fast the other partitions are beside it.
	Slow time.Duration
}

// DefaultAccounts is the default of Workload.Accounts; there may be up to maxAccounts.
const (
	DefaultAccounts = 50
	maxAccounts     = 100_000
)

func (w *Workload) complete(mode KafkaMode) error {
	if w.Handler == "" {
		w.Handler = NoopHandler
	}
	if w.Accounts == 0 {
		w.Accounts = DefaultAccounts
	}
	switch {
	case w.Handler != NoopHandler && w.Handler != DecodeHandler && w.Handler != BalancesHandler:
		return fmt.Errorf("%w: there is no handler %q: choose %s, %s or %s", ErrUsage, w.Handler, NoopHandler, DecodeHandler, BalancesHandler)
	case w.Accounts < 2 || w.Accounts > maxAccounts:
		return fmt.Errorf("%w: %d accounts: give 2 to %d", ErrUsage, w.Accounts, maxAccounts)
	case w.Handler == BalancesHandler && mode != KafkaWork:
		return fmt.Errorf("%w: handler %s needs a transaction: choose mode %s", ErrUsage, BalancesHandler, KafkaWork)
	case (w.PerPartition || w.Add) && w.Handler != BalancesHandler:
		return fmt.Errorf("%w: accounts are those of handler %s: choose it", ErrUsage, BalancesHandler)
	case w.Slow < 0:
		return fmt.Errorf("%w: a handler that takes %v: give a duration from 0", ErrUsage, w.Slow)
	}
	return nil
}

// handle is the handler. tx is nil in mode own.
func (w *Workload) handle(tx *engine.Tx, rec *kafkaadapter.Record) error {
	if w.Slow > 0 && rec.Partition == 0 {
		time.Sleep(w.Slow)
	}
	if w.Handler != DecodeHandler && w.Handler != BalancesHandler {
		return nil
	}
	var p payment
	if err := json.Unmarshal(rec.Value, &p); err != nil {
		return kafkaadapter.Permanent(err)
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
	balance, err := readBalance(tx, account)
	if err != nil {
		return err
	}
	return tx.Put(account, engine.EncodeInt64(balance+amount))
}

// account is the key of an account. Accounts that all partitions share have none in it.
func (w *Workload) account(partition int32, n int) []byte {
	key := []byte("account/")
	if w.PerPartition {
		key = append(strconv.AppendInt(key, int64(partition), 10), '/')
	}
	return strconv.AppendInt(key, int64(n), 10)
}

// readBalance returns 0 for an account that was never written.
func readBalance(tx *engine.Tx, account []byte) (int64, error) {
	v, found, err := tx.Get(account)
	if err != nil || !found {
		return 0, err
	}
	return engine.DecodeInt64(v)
}

// A payment is the JSON of a record. All of it follows from the event's number.
type payment struct {
	Event     string `json:"event"` // the number, as 16 hexadecimal digits
	From      int    `json:"from"`
	To        int    `json:"to"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
	Reference string `json:"reference"`
}

// A record's value begins with eventPrefix and the event's number, and is filled up to valueBytes
// by the reference.
const (
	eventPrefix = `{"event":"`
	eventDigits = 16
	valueBytes  = 200
)

// payment returns what the event of a number pays.
func (l *topicLog) payment(number uint64) payment {
	h := mix(l.Seed ^ mix(number^0xACC7))
	accounts := max(l.Accounts, 2)
	from := int(h % uint64(accounts))
	return payment{
		Event: fmt.Sprintf("%016x", number), From: from, To: (from + 1 + int(h>>32%uint64(accounts-1))) % accounts,
		Amount: int64(h>>20%10_000) + 1, Currency: "EUR",
	}
}

// value is the JSON of the payment of an event.
func (l *topicLog) value(number uint64) []byte {
	p := l.payment(number)
	v := make([]byte, 0, valueBytes+eventDigits)
	v = fmt.Appendf(v, eventPrefix+`%s","from":%d,"to":%d,"amount":%d,"currency":%q,"reference":"`, p.Event, p.From, p.To, p.Amount, p.Currency)
	const end = `"}`
	var word [8]byte
	for h := mix(l.Seed ^ number); len(v) < valueBytes-len(end); h = mix(h) {
		binary.BigEndian.PutUint64(word[:], h)
		v = hex.AppendEncode(v, word[:])
	}
	return append(v[:valueBytes-len(end)], end...)
}
