package engine

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
)

// afterLoss waits, if the transaction has lost, until what it lost to is visible, so that it does
// not lose to it again.
func (tx *Tx) afterLoss() {
	tx.mu.Lock()
	to := tx.lostTo
	tx.mu.Unlock()
	if to == 0 {
		return
	}
	tx.turn.end()
	tx.member.lost(to)
	tx.e.applied.wait(to) // false: the engine has stopped, as the next call says
}

// A transactor makes transactions.
type transactor struct {
	*core
	*finder
	*queue
	tx     transactions
	lane   lane
	sums   *sums
	outbox outbox
	reused txSpares
}

// begin begins a transaction.
func (t *transactor) begin() *Tx {
	tx := &Tx{e: t, live: true}
	tx.useRequest(t.reused.newTx())
	t.tx.begin(tx)
	return tx
}

// A Tx is a transaction. It is valid inside the closure given to Update, and safe for use by
// several goroutines there. Methods of a nil Tx, or of one whose closure has returned, return
// ErrNoTransaction and touch nothing.
type Tx struct {
	e    *transactor
	lazy bool // see DurableAtCommit

	owner owner // of its reservations

	start uint64 // every batch up to this one is visible to the transaction, and none that changes what it reads after
	since uint64 // start, or what it was before the transaction waited for its turn

	member *LaneMember // nil if it is not in the lane
	turn   *turn       // nil if it runs without one
	part   *Part       // that it is the transaction of, nil if it is that of Update

	mu     sync.Mutex // guards all below; held during the transaction's own reads, never by the engine
	live   bool
	lost   error  // ErrConflict once a read saw that the transaction cannot commit
	lostTo uint64 // the batch that it lost to, or a later one, 0 if it has not lost
	told   bool   // of others' claims, which are as of now and not as of the start as reads are
	bytes  int
	req    *txClaims // claims, in the order they were made
	writes *txWrites // of the request
	points savepoints
	reads  map[string]uint64 // of the request: what was read from the store, to the batch as of which it was read
	ranges []keyRange        // what its scans have read

	readBytes int // of the keys of reads, with keyOverhead for each

	kept     verdictCounts // verdicts given and not undone
	attempts verdictCounts // all verdicts given

	watched *observation // nil without an observer

	adds     bool      // some of its writes are, or were, sums
	unclaims bool      // some of its writes take back claims, or did
	key      []byte    // of the call under way
	altered  []altered // claims whose records were changed after they were made, in that order

	parts map[*Part]struct{} // those that are open

	ahead  *ahead // what Prefetch has prepared; nil if there was none
	next   int    // index of the event that is expected next
	asked  int    // index after those about which the filters were asked
	before uint64 // the batch that was being applied when the filters were asked
}

// An altered claim has had another record in the same transaction.
type altered struct {
	claim  int // index of it
	before Record
}

// alter changes the record of a claim of the transaction.
func (tx *Tx) alter(claim int, change func(*Record)) {
	r := &tx.req.records[claim]
	tx.altered = append(tx.altered, altered{claim, *r})
	tx.bytes -= len(r.Data)
	change(r)
	tx.bytes += len(r.Data)
}

// enter begins a method: the transaction is live and has not lost, the engine works, and tx.mu is
// held. leave ends it.
func (tx *Tx) enter() error {
	err := tx.lock()
	if err != nil {
		return err
	}
	if err = tx.e.enter(); err != nil {
		tx.mu.Unlock()
	}
	return err
}

// lock is enter for a method that needs nothing of the engine; unlocking tx.mu ends it.
func (tx *Tx) lock() error {
	if tx == nil {
		return ErrNoTransaction
	}
	tx.mu.Lock()
	err := tx.lost
	if !tx.live {
		err = ErrNoTransaction
	}
	if err != nil {
		tx.mu.Unlock()
	}
	return err
}

// lockWorking is lock for a method that needs nothing of the store, but that the engine works.
func (tx *Tx) lockWorking() error {
	err := tx.lock()
	if err != nil {
		return err
	}
	if err = tx.e.works(); err != nil {
		tx.mu.Unlock()
	}
	return err
}

func (tx *Tx) leave() {
	tx.e.leave()
	tx.mu.Unlock()
}

// get returns the value under the key that begins with prefix and ends with key.
func (tx *Tx) get(prefix, key []byte) ([]byte, bool, error) {
	if err := tx.lockWorking(); err != nil {
		return nil, false, err
	}
	defer tx.mu.Unlock()
	tx.key = append(append(tx.key[:0], prefix...), key...)
	w, written, err := tx.written(tx.key)
	if err != nil {
		return nil, false, err
	}
	if written && !w.isSum {
		return append([]byte{}, w.Value...), w.Value != nil, nil
	}
	return tx.read(tx.key, &w, written)
}

// read reads a key of the store, and resolves the sum that was written on top of it, if any. tx.mu
// is held.
func (tx *Tx) read(key []byte, w *txWrite, written bool) ([]byte, bool, error) {
	if err := tx.e.enter(); err != nil {
		return nil, false, err
	}
	defer tx.e.leave()
	value, found, err := tx.e.store.State(key)
	if err != nil {
		return nil, false, tx.e.stop(err)
	}
	if by := tx.e.tx.changedSince(key, tx.start); by > 0 {
		return nil, false, tx.lose(by)
	}
	if err := tx.noteRead(string(key), tx.start); err != nil {
		return nil, false, err
	}
	if written {
		value, err = w.resolve(value, found)
		return value, err == nil, err
	}
	return value, found, nil
}

// written returns the latest write to a key; in a part, on top of what the whole had written when
// the part began.
func (tx *Tx) written(key []byte) (w txWrite, ok bool, err error) {
	i := tx.writes.find(key)
	if ok = i >= 0; ok {
		w = tx.writes.list[i]
	}
	if tx.part == nil || ok && !w.isSum {
		return w, ok, nil
	}
	base, inherited, err := tx.part.written(key)
	switch {
	case err != nil:
		return w, false, err
	case !inherited:
		return w, ok, nil
	case !ok:
		return base, true, nil
	}
	w, err = base.plus(w.delta)
	return w, true, err
}

// noteRead keeps that the transaction rests on what was read under a name as of a batch.
func (tx *Tx) noteRead(name string, asOf uint64) error {
	if _, known := tx.reads[name]; known {
		return nil
	}
	if tx.readBytes+len(name)+keyOverhead > MaxTxReadBytes {
		return fmt.Errorf("%w: keys of %d bytes were read in one transaction: read less, or in several transactions", ErrLimit, MaxTxReadBytes)
	}
	tx.reads[name] = asOf
	tx.readBytes += len(name) + keyOverhead
	return nil
}

// lose notes that the transaction has lost to a batch; if it is that of a part, so has the whole.
// tx.mu is held.
func (tx *Tx) lose(by uint64) error {
	tx.lost, tx.lostTo = ErrConflict, by
	if tx.part != nil {
		of := tx.part.of
		of.mu.Lock()
		defer of.mu.Unlock()
		if of.live {
			of.lost, of.lostTo = ErrConflict, by
		}
	}
	return ErrConflict
}

func (tx *Tx) write(key, value []byte) error {
	if err := tx.lockWorking(); err != nil {
		return err
	}
	defer tx.mu.Unlock()
	return tx.keepWrite(txWrite{StateWrite: storage.StateWrite{Key: key, Value: value}}, tx.writes.find(key))
}

// put is write of the key that begins with prefix and ends with key, which stays the caller's.
func (tx *Tx) put(prefix, key, value []byte) error {
	if err := tx.lockWorking(); err != nil {
		return err
	}
	defer tx.mu.Unlock()
	before := tx.findWrite(prefix, key)
	return tx.keepWrite(txWrite{StateWrite: storage.StateWrite{Key: tx.writtenKey(before), Value: value}}, before)
}

// findWrite returns the index of the latest write to the key that begins with prefix and ends with
// key, -1 if there is none. tx.mu is held; tx.key becomes the key.
func (tx *Tx) findWrite(prefix, key []byte) int {
	tx.key = append(append(tx.key[:0], prefix...), key...)
	return tx.writes.find(tx.key)
}

// writtenKey returns tx.key as a write may keep it, given the latest write to it.
func (tx *Tx) writtenKey(before int) []byte {
	if before >= 0 {
		return tx.writes.list[before].Key
	}
	return bytes.Clone(tx.key)
}

// keepWrite makes w the latest write to its key; before is the one until now, -1 for none. tx.mu is
// held.
func (tx *Tx) keepWrite(w txWrite, before int) error {
	if tx.bytes+w.size() > MaxTxBytes {
		return fmt.Errorf("%w: %d bytes written in one transaction", ErrLimit, MaxTxBytes)
	}
	tx.writes.add(w, before)
	tx.bytes += w.size()
	return nil
}

// commit hands the transaction to the committer and waits until it is durable.
func (tx *Tx) commit(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := tx.enter(); err != nil {
		return err
	}
	defer tx.e.leave()
	tx.live = false
	tx.ranges = mergeRanges(tx.ranges)
	tx.mu.Unlock()
	if len(tx.req.claims) == 0 && len(tx.writes.list) == 0 {
		if by, _ := tx.e.tx.overtaken(tx); tx.told && by > 0 {
			tx.lostTo = by
			return ErrConflict
		}
		tx.turn.end()
		return tx.e.settle() // what it has read and returned is durable
	}
	if tx.adds {
		if err := tx.e.sums.lookUp(tx.e.core, tx.writes); err != nil {
			return err
		}
	}
	tx.req.tx = tx
	return tx.e.submit(ctx, tx.req)
}

// durable gives the reservations back before any caller gets an answer of the claims. The releaser
// calls it while commit waits.
func (tx *Tx) durable() {
	r := tx.req
	tx.e.tx.release(tx, 0)
	clear(r.claims)
	r.claims = r.claims[:0]
}

// end makes the transaction unusable and gives its reservations back. Doing it again changes
// nothing.
func (tx *Tx) end() {
	tx.mu.Lock()
	tx.live = false
	tx.mu.Unlock()
	tx.endParts()
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.req == nil {
		return
	}
	tx.turn.end()
	tx.writes.reset() // they are not read any more
	tx.undo(progress{})
	tx.e.counters.attempts.add(&tx.attempts)
	tx.e.tx.finish(tx)
	tx.freeRequests()
}

// useRequest gives the transaction the request that it is made of.
func (tx *Tx) useRequest(r *txClaims) {
	if r.reads == nil {
		r.reads = make(map[string]uint64)
	}
	tx.req, tx.writes, tx.reads = r, &r.writes, r.reads
}

func (tx *Tx) freeRequests() {
	tx.e.reused.freeTx(tx.req)
	tx.req, tx.writes, tx.reads = nil, nil, nil
	if tx.ahead != nil {
		tx.e.reused.freeAhead(tx.ahead)
		tx.ahead = nil
	}
}

// txClaims are the claims of a transaction, which commits whole or not at all.
type txClaims struct {
	ticket
	claimSet
	tx      *Tx
	records []Record // what commits, of each of its claims
	writes  txWrites
	reads   map[string]uint64
}

// keptReads bounds the memory that is kept for the next transaction.
const keptReads = 1 << 12

func (s *txSpares) newTx() *txClaims {
	if r, ok := s.tx.Get().(*txClaims); ok {
		return r
	}
	return &txClaims{ticket: newTicket()}
}

func (s *txSpares) freeTx(r *txClaims) {
	clear(r.records)
	r.writes.reset()
	if len(r.reads) > keptReads {
		r.reads = nil
	}
	clear(r.reads)
	*r = txClaims{
		ticket: ticket{done: r.done}, claimSet: r.emptied(),
		records: r.records[:0], writes: r.writes, reads: r.reads,
	}
	s.tx.Put(r)
}

func (s *txSpares) newAhead() *ahead {
	if a, ok := s.ahead.Get().(*ahead); ok {
		return a
	}
	return &ahead{}
}

func (s *txSpares) freeAhead(a *ahead) {
	clear(a.expected)
	*a = ahead{a.emptied(), a.expected[:0]}
	s.ahead.Put(a)
}

// txSpares are what transactions use again, with its memory.
type txSpares struct{ tx, ahead sync.Pool }
