package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A Part is a piece of a transaction that runs in parallel with others, in a goroutine of its own,
// and is joined to the transaction or discarded as a whole: for example the handling of one record
// of a batch.
//
// A part has a Tx of its own, which reads the transaction as it was when the part began, and its
// own writes. Others of the same transaction do not see what it does until it is joined. Two parts
// may claim the same event or write the same key at once: whichever is joined first has it. A part
// that has read or claimed what the transaction has got since the part began is outdated: it is
// refused with ErrPartOutdated, and run again in a new part. So the transaction is what it would be
// if the parts that are joined had run one after the other, in the order in which they were joined.
// Verdicts and values that a part was given count only once Join or Discard has returned nil; so
// does a failure.
//
// An Add is not a read: parts that add to one key are joined in parallel, and what would be an
// AddError of Add is one of Join.
//
// Keys that two parts of one batch both change make one of them run twice: run records of one key
// one after the other, as a partition's order asks for anyway. The part that is next in order and
// is begun after the one before it was joined is never outdated.
//
// Each part may take as much as a whole transaction may (MaxTxBytes, MaxTxClaims) until it is
// joined; the caller bounds how many there are at a time.
type Part struct {
	tx *Tx // the part's own
	of *Tx

	at Savepoint // of the transaction, when the part began

	// Guarded by tx.mu.
	seen   map[string]struct{} // keys whose values were the transaction's writes
	mine   map[lockName]int    // claims of the part, to their indices
	judged []lockName          // claims on which verdicts of the part rest
}

var errPartOfPart = errors.New("hapax: a part has no parts: begin them from the transaction of Update")

// Part begins a part of the transaction. When the closure returns, parts that were neither joined
// nor discarded are discarded. The transaction itself may be used while its parts run; what it does
// is ordered like a part that is joined at that moment. Going back to a savepoint undoes the parts
// that were joined after it, and makes outdated those that began after it.
func (tx *Tx) Part() (*Part, error) {
	if tx != nil && tx.part != nil {
		return nil, errPartOfPart
	}
	if err := tx.lock(); err != nil {
		return nil, err
	}
	defer tx.mu.Unlock()
	p := &Part{of: tx, at: tx.savepoint(), seen: make(map[string]struct{}), mine: make(map[lockName]int)}
	p.tx = &Tx{
		e: tx.e, lazy: tx.lazy, start: tx.start, since: tx.since, live: true,
		part: p, watched: tx.watched.forPart(&tx.e.observations),
	}
	p.tx.useRequest(tx.e.reused.newTx())
	if tx.parts == nil {
		tx.parts = make(map[*Part]struct{})
	}
	tx.parts[p] = struct{}{}
	return p, nil
}

// Tx returns the transaction that the part runs in. Its methods are those of every Tx, savepoints
// included, and reach what the part itself has done: DeadLetter and RollbackTo do not reach what
// the transaction did before the part began.
func (p *Part) Tx() *Tx { return p.tx }

// Join adds what the part has done to the transaction, and ends the part. With an error nothing of
// it was added: ErrPartOutdated if it has to run again in a new part, ErrLimit if the transaction
// would get too large, an AddError if what it adds does not go together with what the transaction
// has written, ErrConflict if the transaction as a whole has lost, ErrNoTransaction if the part or
// the transaction has ended before.
func (p *Part) Join() error { return p.end(true) }

// Discard undoes what the part has done, and ends the part. It returns ErrPartOutdated if the part
// has read or claimed what the transaction has got since it began: a failure of such a part has no
// meaning, and it has to run again. The other errors are those of Join.
func (p *Part) Discard() error { return p.end(false) }

func (p *Part) end(join bool) error {
	tx, of := p.tx, p.of
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.req == nil {
		return ErrNoTransaction
	}
	if err := of.lock(); err != nil {
		p.finish()
		return err
	}
	defer of.mu.Unlock()
	defer p.finish() // releases what was not moved
	delete(of.parts, p)
	err := p.check(join)
	var writes []txWrite
	if err == nil && join {
		writes, err = p.latest()
	}
	of.watched.join(tx.watched, join && err == nil)
	if err != nil {
		return err
	}
	of.told = of.told || tx.told
	of.ranges = append(of.ranges, tx.ranges...)
	p.moveReads()
	if join {
		for v, n := range tx.kept {
			of.kept[v] += n
		}
		of.adds = of.adds || tx.adds
		of.unclaims = of.unclaims || tx.unclaims
		for _, w := range writes {
			of.writes.add(w, of.writes.find(w.Key))
			of.bytes += w.size()
		}
		p.moveClaims()
	}
	return nil
}

// check says whether the part can be joined, or discarded. The locks of both transactions are held.
func (p *Part) check(join bool) error {
	tx, of := p.tx, p.of
	if tx.lost == nil && p.isOutdated() {
		tx.lost = ErrPartOutdated
	}
	switch {
	case tx.lost != nil:
		return tx.lost
	case len(of.ranges)+len(tx.ranges) > MaxTxScans:
		return fmt.Errorf("%w: %d scans in one transaction", ErrLimit, MaxTxScans)
	case of.readBytes+p.newReads() > MaxTxReadBytes:
		return fmt.Errorf("%w: keys of %d bytes were read in one transaction", ErrLimit, MaxTxReadBytes)
	case !join:
		return nil
	case of.bytes+tx.bytes > MaxTxBytes:
		return fmt.Errorf("%w: %d bytes written in one transaction", ErrLimit, MaxTxBytes)
	case len(of.req.claims)+len(tx.req.claims) > MaxTxClaims, len(of.req.arena)+len(tx.req.arena) > MaxTxBytes:
		return fmt.Errorf("%w: %d claims with keys of %d bytes in one transaction", ErrLimit, MaxTxClaims, MaxTxBytes)
	}
	return nil
}

// isOutdated reports whether the transaction has got what the part has read or claimed, or has gone
// back behind the part's begin. The locks of both transactions are held.
func (p *Part) isOutdated() bool {
	tx, of := p.tx, p.of
	if !of.points.valid(p.at.serial) {
		return true
	}
	for _, w := range of.writes.list[p.at.at.writes:] {
		_, read := tx.reads[string(w.Key)]
		_, seen := p.seen[string(w.Key)]
		if read || seen || slices.ContainsFunc(tx.ranges, func(r keyRange) bool { return r.holds(string(w.Key)) }) {
			return true
		}
	}
	return len(of.req.claims) > p.at.at.claims && tx.e.tx.claimedSince(of, p.judged, p.at.at.claims)
}

// newReads returns how much of the cap on reads the part needs in addition to what the transaction
// has read.
func (p *Part) newReads() (size int) {
	for key := range p.tx.reads {
		if _, known := p.of.reads[key]; !known {
			size += len(key) + keyOverhead
		}
	}
	for _, r := range p.tx.ranges {
		size += scanSize(r.lo)
	}
	return size
}

// moveReads adds what the part has read, as of the earlier batch if the transaction has read it,
// too.
func (p *Part) moveReads() {
	p.of.readBytes += p.newReads()
	for key, at := range p.tx.reads {
		if known, ok := p.of.reads[key]; !ok || at < known {
			p.of.reads[key] = at
		}
	}
}

// latest returns the last write to each key, what was added on top of what the transaction has
// written. The locks of both transactions are held.
func (p *Part) latest() (writes []txWrite, err error) {
	for i, w := range p.tx.writes.list {
		if !p.tx.writes.isLatest(i) {
			continue
		}
		if under := p.of.writes.find(w.Key); under >= 0 && w.isSum {
			if w, err = p.of.writes.list[under].plus(w.delta); err != nil {
				return nil, err
			}
		}
		writes = append(writes, w)
	}
	return writes, nil
}

// moveClaims moves the claims. The locks of both transactions are held.
func (p *Part) moveClaims() {
	from, to := p.tx.req, p.of.req
	first := len(to.claims)
	for i := range from.claims {
		c := from.claims[i]
		near := from.nearOf(&c)
		c.place = to.take(&from.claimSet, &c.place)
		c.nearAt = len(to.near)
		for i := range near {
			to.near = append(to.near, to.take(&from.claimSet, &near[i]))
		}
		c.nearEnd = len(to.near)
		to.claims = append(to.claims, c)
		to.records = append(to.records, from.records[i])
		p.of.bytes += len(from.records[i].Data)
	}
	for _, a := range p.tx.altered {
		p.of.altered = append(p.of.altered, altered{first + a.claim, a.before})
	}
	p.tx.e.tx.moveClaims(to.claims[first:], first)
	clear(from.claims)
	clear(p.tx.altered)
	from.claims, from.records, p.tx.altered = from.claims[:0], from.records[:0], p.tx.altered[:0]
}

// finish ends the part and gives its reservations back. The lock of its own transaction is held.
func (p *Part) finish() {
	tx := p.tx
	tx.live, tx.lost = false, nil
	tx.undo(progress{})
	tx.e.counters.attempts.add(&tx.attempts)
	tx.watched.free(&tx.e.observations)
	tx.watched = nil
	tx.freeRequests()
}

// endParts discards the parts that are open.
func (tx *Tx) endParts() {
	tx.mu.Lock()
	parts := tx.parts
	tx.parts = nil
	tx.mu.Unlock()
	for p := range parts {
		p.tx.mu.Lock()
		if p.tx.req != nil {
			p.finish()
		}
		p.tx.mu.Unlock()
	}
}

// lockBase locks the transaction for a read of the part; the caller unlocks it.
func (p *Part) lockBase() error {
	err := p.of.lock()
	if err == nil && !p.of.points.valid(p.at.serial) {
		p.of.mu.Unlock()
		err = ErrPartOutdated
	}
	if err != nil {
		p.tx.lost = err
	}
	return err
}

// written returns the latest write of the transaction to a key when the part began.
func (p *Part) written(key []byte) (w txWrite, ok bool, err error) {
	if err := p.lockBase(); err != nil {
		return w, false, err
	}
	defer p.of.mu.Unlock()
	i := p.of.writes.find(key)
	if i < 0 {
		return w, false, nil
	}
	if i >= p.at.at.writes {
		p.tx.lost = ErrPartOutdated
		return w, false, ErrPartOutdated
	}
	p.seen[string(key)] = struct{}{}
	return p.of.writes.list[i], true, nil
}

// writesIn returns the latest writes of the transaction in the span, as txWrites.in does, when the
// part began.
func (p *Part) writesIn(span storage.Span, end []byte, limit int) (writes []txWrite, upTo []byte, err error) {
	if err := p.lockBase(); err != nil {
		return nil, nil, err
	}
	defer p.of.mu.Unlock()
	writes, upTo = p.of.writes.in(span, end, limit)
	for i := range writes {
		if int(p.of.writes.latest[writes[i].slot]) >= p.at.at.writes {
			p.tx.lost = ErrPartOutdated
			return nil, nil, ErrPartOutdated
		}
	}
	return writes, upTo, nil
}

// inherited returns the record of a claim that is reserved, if the transaction had made it when the
// part began.
func (p *Part) inherited(r reservation, key []byte) (rec Record, ok bool) {
	if r.owner != &p.of.owner || r.claim == noClaim || p.lockBase() != nil {
		return Record{}, false
	}
	defer p.of.mu.Unlock()
	if int(r.claim) >= p.at.at.claims {
		p.tx.lost = ErrPartOutdated
		return Record{}, false
	}
	if !p.of.req.isClaim(int(r.claim), key) {
		return Record{}, false
	}
	return p.of.req.records[r.claim], true
}

// noteJudged notes the claims on which the verdict for a candidate rests.
func (p *Part) noteJudged(r *claimSet, c *candidate) {
	p.judged = append(p.judged, c.lock)
	near := r.nearOf(c)
	for i := range near {
		p.judged = append(p.judged, p.tx.e.tx.lockName(r.key(&near[i])))
	}
}
