package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

// An UpdateOption changes how Update runs.
type UpdateOption func(*updateConfig)

type updateConfig struct {
	retries int
	lazy    bool
	member  *LaneMember

	expected []Event
}

// Retries lets Update run its closure up to n times more when it conflicts with another writer
// (ErrConflict), each time as soon as what it lost to is visible. The closure has to be safe to run
// again.
func Retries(n int) UpdateOption { return func(c *updateConfig) { c.retries = n } }

// DurableAtCommit lets a transaction return Duplicate inside its closure before the claim that it
// rests on is durable; it is when Update returns nil, because the transaction's own batch comes
// after it. It saves a wait for each such answer. What another transaction is just committing is a
// Duplicate, too, once it shows, and not InFlight. The closure must not do anything outside the
// transaction for the sake of a Duplicate, such as acknowledging the event.
func DurableAtCommit() UpdateOption { return func(c *updateConfig) { c.lazy = true } }

// Update runs fn in a transaction. What fn claims, reads and writes through tx commits in one batch
// of the store, or none of it does. When Update returns nil it is durable. On an error, and if fn
// panics, nothing is applied and the claims are free again (at least once on failure: the
// application needs a limit of attempts and a place for what never succeeds). The one exception is
// an error that wraps ErrOutcomeUnknown: the store failed while it wrote the batch, which may be
// durable, whole, or not. Open the store again, and look up a claim or a key of the transaction.
//
// A transaction is bounded by MaxTxBytes, MaxTxClaims, MaxTxReadBytes and MaxTxScans, beyond which
// its methods return ErrLimit. One that stays open while others write more than MaxRecentWriteBytes
// of keys returns ErrConflict if it has read anything.
//
// Transactions are serializable over claims, application keys and offsets, absent ones included.
// One that loses returns ErrConflict with nothing applied, once what it lost to is visible. No
// verdict waits for a transaction that is open, so that two of them cannot block each other (InLane
// makes transactions wait before they begin, for a bounded time); fn runs under no lock, and may
// use the engine in addition to tx: an own-commit claim made inside it commits by itself.
//
// ctx is looked at before fn runs and before the commit is handed over; after that Update waits for
// the outcome. If it ends while fn runs, the transaction ends then: what it has claimed is free for
// others, and its methods return ErrNoTransaction, whenever fn returns.
func (e *Engine) Update(ctx context.Context, fn func(tx *Tx) error, options ...UpdateOption) error {
	var cfg updateConfig
	for _, o := range options {
		o(&cfg)
	}
	for attempt := 0; ; attempt++ {
		err := e.updateOnce(ctx, fn, &cfg)
		if !errors.Is(err, ErrConflict) || attempt >= cfg.retries {
			return err
		}
	}
}

func (e *Engine) updateOnce(ctx context.Context, fn func(tx *Tx) error, cfg *updateConfig) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.enter(); err != nil {
		return err
	}
	tx := e.tx.begin(e)
	tx.lazy, tx.member = cfg.lazy, cfg.member
	if len(cfg.expected) > 0 {
		tx.prefetch(cfg.expected)
	}
	e.leave()
	committed := false
	defer func() { // also if fn panics
		if committed {
			e.counters.verdicts.add(&tx.kept)
			e.counters.takenBack.Add(tx.unclaimed())
		}
		tx.end()
		tx.watched.end(&e.observations, err, committed)
	}()
	tx.watched = e.observations.begin(ctx, e.opt.Observer)
	if tx.turn, err = tx.member.await(ctx, e); err != nil {
		return err
	}
	if tx.turn != nil {
		e.tx.restart(tx)
	}
	stop := context.AfterFunc(ctx, tx.end)
	defer stop()
	if err = fn(tx); err == nil && !stop() {
		err = ctx.Err()
	}
	if err == nil {
		err = tx.commit(ctx)
		committed = err == nil
	}
	tx.afterLoss()
	return err
}

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

// A Tx is a transaction. It is valid inside the closure given to Update, and safe for use by
// several goroutines there. Methods of a nil Tx, or of one whose closure has returned, return
// ErrNoTransaction and touch nothing.
type Tx struct {
	e    *Engine
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

// Get returns the value under a key of the application's own, as the transaction sees it: its own
// writes, else the store as it was when the transaction began. found distinguishes an absent key
// from an empty value. ErrConflict means that the key has been written since the transaction began;
// the transaction cannot commit any more.
func (tx *Tx) Get(key []byte) (value []byte, found bool, err error) {
	return tx.applicationKeys().Get(key)
}

// Put sets a key of the application's own.
func (tx *Tx) Put(key, value []byte) error { return tx.applicationKeys().Put(key, value) }

// Delete removes a key of the application's own; it is no error if there is none.
func (tx *Tx) Delete(key []byte) error { return tx.applicationKeys().Delete(key) }

// Offset returns the next offset of a partition as the transaction sees it.
func (tx *Tx) Offset(p Position) (o Offset, found bool, err error) {
	if err := p.check(); err != nil {
		return Offset{}, false, err
	}
	value, found, err := tx.get(p.stateKey(), nil)
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
		return &KeyError{"offset", fmt.Sprintf("is %d", o.Next)}
	}
	return tx.write(p.stateKey(), o.encode())
}

// SetHold and ReleaseHold are Engine.SetHold and Engine.ReleaseHold as part of the transaction.
func (tx *Tx) SetHold(name string, at time.Time) error {
	if err := checkHold(name, at); err != nil {
		return err
	}
	return tx.write(holdKey(name), encodeHold(at))
}

// ReleaseHold removes a hold; it is no error if there is none.
func (tx *Tx) ReleaseHold(name string) error {
	if err := checkHold(name, time.Unix(0, 0)); err != nil {
		return err
	}
	return tx.write(holdKey(name), nil)
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
	tx.mergeRanges()
	tx.mu.Unlock()
	if len(tx.req.claims) == 0 && len(tx.writes.list) == 0 {
		if by, _ := tx.e.tx.overtaken(tx); tx.told && by > 0 {
			tx.lostTo = by
			return ErrConflict
		}
		tx.turn.end()
		return tx.e.settle() // what it has read and returned is durable
	}
	if err := tx.lookUpSums(); err != nil {
		return err
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
	tx.e.spares.freeTx(tx.req)
	tx.req, tx.writes, tx.reads = nil, nil, nil
	if tx.ahead != nil {
		tx.e.spares.freeAhead(tx.ahead)
		tx.ahead = nil
	}
}
