package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Caps on one transaction, which bound its batch and its memory. Reaching one is ErrLimit.
const (
	MaxHostKeyBytes   = 4 << 10
	MaxHostValueBytes = 4 << 20
	MaxTxBytes        = 32 << 20
	MaxTxClaims       = 1 << 16
)

// An UpdateOption changes how Update runs.
type UpdateOption func(*updateConfig)

type updateConfig struct {
	retries int
	lazy    bool
}

// Retries lets Update run its closure up to n times more when it loses against another writer (ErrConflict), after a
// short random pause. The closure has to be safe to run again.
func Retries(n int) UpdateOption { return func(c *updateConfig) { c.retries = n } }

// DurableAtCommit lets a transaction tell Duplicate inside its closure before the claim that it rests on is durable; it is
// when Update returns nil, because the transaction's own batch comes after it. It saves a wait for each such answer. What
// another transaction is just committing is a Duplicate, too, once it shows, and not InFlight. The closure must not do
// anything outside the transaction for the sake of a Duplicate, such as acknowledging the event.
func DurableAtCommit() UpdateOption { return func(c *updateConfig) { c.lazy = true } }

// Update runs fn in a transaction. What fn claims, reads and writes through tx commits in one batch of the store, or
// none of it does: when Update returns nil it is durable; on any error, and if fn panics, nothing is applied and the
// claims are free again (at least once on failure: the host needs a limit of attempts and a place for what never
// succeeds).
//
// Transactions are serializable over claims, host keys and offsets, absent ones included. One that loses returns
// ErrConflict with nothing applied. Nothing waits for a transaction that is open, so that two of them cannot block each
// other; fn runs under no lock, and may use the engine beside tx: an own-commit claim made inside it commits by itself.
//
// ctx is looked at before fn runs and before the commit is handed over; after that Update waits for the outcome. If it
// ends while fn runs, the transaction ends then: what it has claimed is free for others, and its methods return
// ErrNoTransaction, whenever fn returns.
func (e *Engine) Update(ctx context.Context, fn func(tx *Tx) error, options ...UpdateOption) error {
	var cfg updateConfig
	for _, o := range options {
		o(&cfg)
	}
	for attempt := 0; ; attempt++ {
		err := e.updateOnce(ctx, fn, cfg.lazy)
		if !errors.Is(err, ErrConflict) || attempt >= cfg.retries {
			return err
		}
		if err := pause(ctx, time.Duration(rand.Int64N(int64(time.Millisecond)<<min(attempt, 6)))); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (e *Engine) updateOnce(ctx context.Context, fn func(tx *Tx) error, lazy bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.enter(); err != nil {
		return err
	}
	tx := e.tx.begin(ctx, e)
	tx.lazy = lazy
	e.leave()
	defer tx.end() // also if fn panics
	stop := context.AfterFunc(ctx, tx.end)
	defer stop()
	if err := fn(tx); err != nil {
		return err
	}
	if !stop() {
		return ctx.Err()
	}
	return tx.commit(ctx)
}

// A Tx is a transaction. It is valid inside the closure given to Update, and safe for use by several goroutines there.
// Methods of a nil Tx, or of one whose closure has returned, return ErrNoTransaction and touch nothing.
type Tx struct {
	e   *Engine
	ctx context.Context // of Update, for the observer only

	lazy bool // see DurableAtCommit

	won atomic.Uint64 // the batch that it is in, once it is admitted; 0 before

	start uint64 // every batch up to this one is visible to the transaction, and none that changes what it reads after

	mu     sync.Mutex // guards all below; held during the transaction's own reads, never by the engine
	live   bool
	lost   error // ErrConflict once a read saw that the transaction cannot commit
	told   bool  // of others' claims, which are as of now and not as of the start as reads are
	bytes  int
	req    *request          // claims, in the order they were made
	writes []txWrite         // in the order they were made
	latest map[string]int    // state key to index of its latest write
	serial uint64            // of the last savepoint
	undone []serials         // savepoints that are not valid any more, rising
	reads  map[string]uint64 // what was read from the store, to the batch as of which it was read

	verdicts [len(Verdicts) + 1]uint64 // that it was told

	letters []int // indices of the claims that were dead-lettered, in that order

	ahead  *request // what Prefetch has prepared; nil if there was none
	next   int      // index of the event that is expected next
	before uint64   // the batch that was being applied when the filters were asked
}

type txWrite struct {
	StateWrite
	before int // index of the write to the same key before, -1 if none
}

// Get returns the value under a key of the host's own, as the transaction sees it: its own writes, else the store as
// it was when the transaction began. found tells an absent key from an empty value. ErrConflict means that the key has
// been written since the transaction began; the transaction cannot commit any more.
func (tx *Tx) Get(key []byte) (value []byte, found bool, err error) {
	if err := checkHostKey(key); err != nil {
		return nil, false, err
	}
	return tx.get(hostKey(key))
}

// Put sets a key of the host's own.
func (tx *Tx) Put(key, value []byte) error {
	if err := checkHostKey(key); err != nil {
		return err
	}
	if len(value) > MaxHostValueBytes {
		return &KeyError{"host value", fmt.Sprintf("has %d bytes, the cap is %d", len(value), MaxHostValueBytes)}
	}
	return tx.write(hostKey(key), append([]byte{}, value...))
}

// Delete removes a key of the host's own; it is no error if there is none.
func (tx *Tx) Delete(key []byte) error {
	if err := checkHostKey(key); err != nil {
		return err
	}
	return tx.write(hostKey(key), nil)
}

// Offset returns the next offset of a partition as the transaction sees it.
func (tx *Tx) Offset(p Position) (o Offset, found bool, err error) {
	if err := p.check(); err != nil {
		return Offset{}, false, err
	}
	value, found, err := tx.get(p.stateKey())
	if err != nil || !found {
		return Offset{}, false, err
	}
	o, err = parseOffset(value)
	return o, err == nil, err
}

// SetOffset records the next offset to read of a partition. It commits with the claims and writes of the transaction.
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

// A Savepoint is a point in a transaction that it can go back to.
type Savepoint struct {
	tx     *Tx
	serial uint64
	at     progress
}

// serials are those after the first one, up to the last one.
type serials struct{ after, last uint64 }

// progress is how much of what a transaction does is done.
type progress struct{ claims, keys, near, letters, writes int }

// Savepoint marks this point of the transaction.
func (tx *Tx) Savepoint() (Savepoint, error) {
	if err := tx.lock(); err != nil {
		return Savepoint{}, err
	}
	defer tx.mu.Unlock()
	tx.serial++
	r := tx.req
	return Savepoint{tx, tx.serial, progress{len(r.claims), len(r.arena), len(r.near), len(tx.letters), len(tx.writes)}}, nil
}

// RollbackTo undoes everything claimed, dead-lettered and written since the savepoint was taken; what was before stays. Savepoints
// taken since then are no longer valid.
func (tx *Tx) RollbackTo(s Savepoint) error {
	if err := tx.enter(); err != nil {
		return err
	}
	defer tx.leave()
	if s.tx != tx || !tx.valid(s.serial) {
		return &KeyError{"savepoint", "is not one of this transaction, or was undone by an earlier rollback"}
	}
	tx.invalidate(s.serial)
	tx.undo(s.at)
	return nil
}

// valid reports whether no rollback went back behind the savepoint.
func (tx *Tx) valid(serial uint64) bool {
	i, _ := slices.BinarySearchFunc(tx.undone, serial, func(u serials, serial uint64) int { return cmp.Compare(u.last, serial) })
	return i == len(tx.undone) || serial <= tx.undone[i].after
}

// invalidate makes all savepoints invalid that were taken after the given one.
func (tx *Tx) invalidate(after uint64) {
	n := len(tx.undone)
	for n > 0 && tx.undone[n-1].after >= after {
		n--
	}
	if tx.undone = tx.undone[:n]; after < tx.serial {
		tx.undone = append(tx.undone, serials{after, tx.serial})
	}
}

// undo takes back what was done since to.
func (tx *Tx) undo(to progress) {
	r := tx.req
	for _, i := range tx.letters[to.letters:] {
		r.records[i].State = Done
	}
	tx.letters = tx.letters[:to.letters]
	tx.e.tx.release(r, to.claims)
	clear(r.claims[to.claims:])
	r.claims, r.records = r.claims[:to.claims], r.records[:to.claims]
	r.arena, r.near = r.arena[:to.keys], r.near[:to.near]
	for i := len(tx.writes) - 1; i >= to.writes; i-- {
		w := &tx.writes[i]
		tx.bytes -= len(w.Key) + len(w.Value)
		if w.before < 0 {
			delete(tx.latest, string(w.Key))
		} else {
			tx.latest[string(w.Key)] = w.before
		}
	}
	clear(tx.writes[to.writes:])
	tx.writes = tx.writes[:to.writes]
}

func checkHostKey(key []byte) error {
	if len(key) == 0 || len(key) > MaxHostKeyBytes {
		return &KeyError{"host key", fmt.Sprintf("has %d bytes: give 1 to %d", len(key), MaxHostKeyBytes)}
	}
	return nil
}

func hostKey(key []byte) []byte { return append([]byte{stateHost}, key...) }

// enter begins a method: the transaction is live and has not lost, the engine works, and tx.mu is held. leave ends it.
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

func (tx *Tx) leave() {
	tx.e.leave()
	tx.mu.Unlock()
}

func (tx *Tx) get(key []byte) ([]byte, bool, error) {
	if err := tx.enter(); err != nil {
		return nil, false, err
	}
	defer tx.leave()
	if i, ok := tx.latest[string(key)]; ok {
		v := tx.writes[i].Value
		return append([]byte{}, v...), v != nil, nil
	}
	value, found, err := tx.e.store.State(key)
	if err != nil {
		return nil, false, tx.e.stop(err)
	}
	if tx.e.tx.changedSince(key, tx.start) {
		tx.lost = ErrConflict
		return nil, false, ErrConflict
	}
	tx.reads[string(key)] = tx.start
	return value, found, nil
}

func (tx *Tx) write(key, value []byte) error {
	if err := tx.enter(); err != nil {
		return err
	}
	defer tx.leave()
	if tx.bytes+len(key)+len(value) > MaxTxBytes {
		return fmt.Errorf("%w: %d bytes written in one transaction", ErrLimit, MaxTxBytes)
	}
	before := -1
	if i, ok := tx.latest[string(key)]; ok {
		before = i
	}
	tx.latest[string(key)] = len(tx.writes)
	tx.writes = append(tx.writes, txWrite{StateWrite{key, value}, before})
	tx.bytes += len(key) + len(value)
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
	tx.mu.Unlock()
	if len(tx.req.claims) == 0 && len(tx.writes) == 0 {
		if tx.told && tx.e.tx.lost(tx) {
			return ErrConflict
		}
		return tx.e.settle() // what it read and told is durable
	}
	tx.req.tx = tx
	return tx.e.submit(ctx, tx.req)
}

// durable gives the reservations back before anybody is told of the claims. The releaser calls it while commit waits.
func (tx *Tx) durable() {
	r := tx.req
	tx.e.tx.release(r, 0)
	clear(r.claims)
	r.claims = r.claims[:0]
}

// end makes the transaction unusable and gives its reservations back. Doing it again changes nothing.
func (tx *Tx) end() {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.req == nil {
		return
	}
	tx.live = false
	tx.undo(progress{})
	tx.e.counters.add(&tx.verdicts)
	tx.e.tx.finish(tx)
	tx.e.free(tx.req)
	tx.req = nil
	if tx.ahead != nil {
		tx.e.free(tx.ahead)
		tx.ahead = nil
	}
}

// admitTx decides a transaction: either all of it goes into the group or nothing.
func (e *Engine) admitTx(g *group, r *request) error {
	tx := r.tx
	if e.tx.lost(tx) {
		return ErrConflict
	}
	if err := e.holds.admit(tx); err != nil {
		return err
	}
	for i := range r.claims {
		c := &r.claims[i]
		if c.week < e.decideOld {
			return ErrWeekDropped
		}
		rec := &r.records[i]
		if now, found, err := e.decide(r.key(&c.place), c); err != nil {
			return err
		} else if found != rec.reopened() || found && !now.opens(rec.Generation-1) {
			return ErrConflict
		}
		if !rec.reopened() {
			if _, found, _, err := e.decideNear(r, c); err != nil {
				return err
			} else if found {
				return ErrConflict
			}
		}
		if _, _, err := e.refs(g, c.scope, rec.Origin.Topic); err != nil {
			return err
		}
	}
	for i := range r.claims {
		c := &r.claims[i]
		if err := e.claim(g, r.key(&c.place), c, &r.records[i]); err != nil {
			return e.stop(err) // cannot be: its names are known by now
		}
	}
	for i := range tx.writes {
		if w := tx.writes[i].StateWrite; tx.latest[string(w.Key)] == i {
			g.batch.State = append(g.batch.State, w)
			g.bytes += len(w.Key) + len(w.Value)
			e.holds.noteWrite(w)
		}
	}
	e.tx.wrote(tx, e.seq+1)
	tx.won.Store(e.seq + 1)
	return nil
}
